-- Locks one shard's row and reads what a switch of its mode rests on, with MySQL's clock (UTC epoch ms).
-- Exclusive lock on one row by primary key: waits for the worker's transaction and for all that MySQL is deciding.
SELECT mode, epoch, term, switch_id, switch_to, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) AS now_ms
FROM shard
WHERE shard_no = %s
FOR UPDATE
