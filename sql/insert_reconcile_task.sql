-- Notes a comparison: one that was asked for (PENDING), or one that found something (DONE).
-- Appends by primary key; takes no other lock.
INSERT INTO inventory_reconcile_task
    (shard_no, epoch, scope, dry_run, keys_wanted, status, cold, in_flight, healthy, drifted, lost, repaired, stuck, detail,
    requested_by, started_ms, finished_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
