-- Reads the parked events of one order in their order; tenant, order and how many.
-- Index inventory_parked_event_ref; no lock.
SELECT inventory_key, epoch, m, seq, tenant, ref, reason, parked_ms
FROM inventory_parked_event
WHERE tenant = %s AND ref = %s
ORDER BY epoch, m, inventory_key
LIMIT %s
