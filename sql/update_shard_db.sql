-- Lets MySQL decide where nobody did: epoch, genesis digest, ms, then shard and the epoch, term and switch that were read.
-- Primary key with compare-and-set; one row or none.
UPDATE shard
SET mode = 'db', epoch = %s, applied_m = 0, applied_digest = %s, wanted_m = 0, rebuild_wanted = 0, rebuild_reason = '',
    since_ms = %s
WHERE shard_no = %s AND mode = 'opening' AND epoch = %s AND term = %s AND switch_id = %s
