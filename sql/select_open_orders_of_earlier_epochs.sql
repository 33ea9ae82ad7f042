-- Reads a page of orders with an open hold that no event of this epoch has touched, by due time: parameters are the shard,
-- the epoch, the place after which the page begins (due_ms, tenant, order_id) and a limit.
-- Index inventory_order_due for the open ones, sorted; takes no lock.
SELECT due_ms, tenant, order_id
FROM inventory_order
WHERE shard_no = %s AND open_lines > 0 AND epoch < %s AND (due_ms, tenant, order_id) > (%s, %s, %s)
ORDER BY due_ms, tenant, order_id
LIMIT %s
