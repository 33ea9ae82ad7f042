-- Claims a comparison, if it still is what was read; affects one row or none.
-- Primary key.
UPDATE inventory_reconcile_task
SET status = 'RUNNING', started_ms = %s
WHERE id = %s AND status = %s AND started_ms = %s
