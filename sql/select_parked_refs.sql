-- Finds which of some orders and requests, `((tenant, ref), …)`, have changes that wait for an operator, and on which key.
-- One range of inventory_parked_event_ref per order or request; no lock.
SELECT DISTINCT tenant, ref, inventory_key
FROM inventory_parked_event
WHERE (tenant, ref) IN %s
