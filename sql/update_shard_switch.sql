-- Names the switch that runs, or 0 and '' for none.
-- Primary key; the row was locked by the same transaction.
UPDATE shard
SET switch_id = %s, switch_to = %s
WHERE shard_no = %s
