-- Opens an epoch: parameters are epoch, genesis digest, ms of the leader's clock, shard, epoch and term that were read.
-- Primary key with compare-and-set on (mode, epoch, term); one row or none.
UPDATE shard
SET mode = 'hot', epoch = %s, applied_m = 0, applied_digest = %s, wanted_m = 0, rebuild_wanted = 0, rebuild_reason = '',
    since_ms = %s
WHERE shard_no = %s AND mode = 'opening' AND epoch = %s AND term = %s
