-- Ends a comparison with what it found.
-- Primary key.
UPDATE inventory_reconcile_task
SET status = %s, epoch = %s, cold = %s, in_flight = %s, healthy = %s, drifted = %s, lost = %s, repaired = %s, stuck = %s,
    detail = %s, finished_ms = %s
WHERE id = %s
