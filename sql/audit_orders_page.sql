-- Audit: lines of some orders as MySQL has them, to be held against Redis; parameters are pairs of tenant and order id.
-- Primary key; takes no lock.
SELECT tenant, order_id, position, inventory_key, qty, state, epoch, seq
FROM inventory_reservation
WHERE (tenant, order_id) IN %s
ORDER BY tenant, order_id, position
