-- Reads the lines of the orders that a batch touches, under the shard's lock; a tenant and a list of order ids.
-- Primary key, one range per order; no lock.
SELECT tenant, order_id, position, inventory_key, qty, state
FROM inventory_reservation
WHERE tenant = %s AND order_id IN %s
