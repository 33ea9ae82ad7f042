-- Finds the row that the periodic comparison of a shard keeps up to date.
-- Index inventory_reconcile_task_status; takes no lock.
SELECT id
FROM inventory_reconcile_task
WHERE status = 'PERIODIC' AND shard_no = %s
ORDER BY id
LIMIT 1
