-- Finds comparisons that were asked for and not begun, or begun by a process that died; a limit is the last parameter.
-- Index inventory_reconcile_task_status; takes no lock, claiming is a compare-and-set.
SELECT id, shard_no, dry_run, keys_wanted, status, started_ms
FROM inventory_reconcile_task
WHERE status = 'PENDING' OR (status = 'RUNNING' AND started_ms < %s)
ORDER BY id
LIMIT %s
