-- Counts what of a shard waits for an operator and what comparisons found; the parameter is the shard, five times.
-- Indexes inventory_balance_held and inventory_reconcile_task_status; the other two tables hold exceptions only. No lock.
SELECT
    (SELECT COUNT(*) FROM inventory_balance WHERE shard_no = %s AND held = 1),
    (SELECT COUNT(*) FROM inventory_parked_event WHERE shard_no = %s),
    (SELECT COUNT(*) FROM stale_event WHERE shard_no = %s),
    (SELECT COALESCE(SUM(drifted), 0) FROM inventory_reconcile_task WHERE shard_no = %s AND status = 'DONE'),
    (SELECT COALESCE(SUM(repaired), 0) FROM inventory_reconcile_task WHERE shard_no = %s AND status = 'DONE')
