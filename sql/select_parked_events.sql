-- Reads the first parked events of a key in their order; the key and how many.
-- Primary key prefix in order; no lock, the shard's is held.
SELECT epoch, m, change_no, seq, tenant, ref, payload, reason
FROM inventory_parked_event
WHERE inventory_key = %s
ORDER BY epoch, m, change_no
LIMIT %s
