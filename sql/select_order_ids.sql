-- Reads the next ids of a shard's orders, after `(tenant, order_id)`, in their order.
-- Two ranges of inventory_order's primary key, read until there are enough; no lock.
SELECT tenant, order_id
FROM inventory_order
WHERE shard_no = %s AND (tenant > %s OR (tenant = %s AND order_id > %s))
ORDER BY tenant, order_id
LIMIT %s
