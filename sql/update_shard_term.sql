-- Begins a term: parameters are the new term, the shard, the term that was read.
-- Primary key with compare-and-set on the term; waits for the worker's transaction, which locks the same row.
UPDATE shard
SET term = %s
WHERE shard_no = %s AND term = %s
