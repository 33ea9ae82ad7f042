-- Reads who decides, with MySQL's clock (UTC epoch ms) and whether anything is parked: until COMMIT nobody else may decide.
-- Shared lock on one row by primary key: those who decide share it, the worker, operators and the leader wait for it.
SELECT mode, epoch, term, since_ms, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) AS now_ms,
    EXISTS (SELECT 1 FROM inventory_parked_event) AS any_parked
FROM shard
WHERE shard_no = %s
LOCK IN SHARE MODE
