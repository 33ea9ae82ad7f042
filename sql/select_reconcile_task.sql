-- Reads one comparison.
-- Primary key; takes no lock.
SELECT id, shard_no, epoch, scope, dry_run, status, cold, in_flight, healthy, drifted, lost, repaired, stuck, detail,
    requested_by, started_ms, finished_ms
FROM inventory_reconcile_task
WHERE id = %s
