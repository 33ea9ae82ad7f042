-- Reads the lines of orders of which the headers are locked; a tenant and a list of order ids.
-- Primary key, one range per order; the header stands for them, so they need no lock.
SELECT tenant, order_id, position, inventory_key, qty, state, reason, epoch, seq
FROM inventory_reservation
WHERE tenant = %s AND order_id IN %s
