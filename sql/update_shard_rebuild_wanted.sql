-- Asks the leader to close the shard and open it anew, once for each epoch; affects no row if that was asked already.
-- Primary key; waits for the worker's transaction at most the lock wait timeout.
UPDATE shard
SET rebuild_wanted = rebuild_wanted + 1, rebuild_reason = %s
WHERE shard_no = %s AND epoch = %s AND mode = 'hot' AND rebuild_wanted = 0
