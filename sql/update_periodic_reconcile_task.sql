-- Writes what the last periodic comparison saw; repaired counts on.
-- Primary key.
UPDATE inventory_reconcile_task
SET epoch = %s, cold = %s, in_flight = %s, healthy = %s, drifted = %s, lost = %s, repaired = repaired + %s, stuck = %s,
    detail = %s, started_ms = %s, finished_ms = %s
WHERE id = %s
