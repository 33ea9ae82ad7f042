-- Reads all lines of the orders asked for, `((tenant, order_id), …)`, each order's lines in their places.
-- One range of inventory_reservation's primary key per order, which is the order of the answer too; no lock.
SELECT tenant, order_id, inventory_key, qty, state, reason, epoch, seq
FROM inventory_reservation
WHERE (tenant, order_id) IN %s
ORDER BY tenant, order_id, position
