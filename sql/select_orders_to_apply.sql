-- Reads the headers of the orders that a batch touches, under the shard's lock; a tenant and a list of order ids.
-- Primary key, one row per order; no lock.
SELECT tenant, order_id, fingerprint, buyer_id, line_count, open_lines, due_ms, epoch, m, created_ms
FROM inventory_order
WHERE tenant = %s AND order_id IN %s
