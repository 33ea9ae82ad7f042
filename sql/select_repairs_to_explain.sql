-- Reads the last repairs of one key, the newest first.
-- Index inventory_repair_task_key; no lock.
SELECT id, kind, class, status, epoch, seq, before_image, after_image, reason, requested_by, created_ms
FROM inventory_repair_task
WHERE inventory_key = %s
ORDER BY id DESC
LIMIT %s
