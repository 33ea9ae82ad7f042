-- Reads the first parked events of one key in their order, without their payloads; the key and how many.
-- Primary key prefix in order; no lock.
SELECT inventory_key, epoch, m, seq, tenant, ref, reason, parked_ms
FROM inventory_parked_event
WHERE inventory_key = %s
ORDER BY epoch, m, change_no
LIMIT %s
