-- Leaves the trace of one repair that the reconciler made or asked for.
-- Appends by primary key; takes no other lock.
INSERT INTO inventory_repair_task
    (shard_no, kind, inventory_key, class, status, epoch, seq, before_image, after_image, reason, requested_by, created_ms,
    finished_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
