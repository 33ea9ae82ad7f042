-- Ends mode db: parameters are ms of the leader's clock, shard, and the epoch, term and switch that were read.
-- Primary key with compare-and-set; its exclusive lock waits for every transaction in which MySQL decides.
UPDATE shard
SET mode = 'opening', since_ms = %s
WHERE shard_no = %s AND mode = 'db' AND epoch = %s AND term = %s AND switch_id = %s
