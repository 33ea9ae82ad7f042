-- Finds whether a key has an event parked from one entry; the key, epoch and entry number.
-- Primary key prefix; no lock.
SELECT epoch, m
FROM inventory_parked_event
WHERE inventory_key = %s AND epoch = %s AND m = %s
LIMIT 1
