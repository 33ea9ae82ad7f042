-- Reads the headers of orders that are to be decided about; a tenant and a list of order ids.
-- Primary key: locks the rows that exist in its order; of those that do not, it locks nothing.
SELECT tenant, order_id, fingerprint, buyer_id, line_count, open_lines, due_ms, epoch, m, created_ms
FROM inventory_order FORCE INDEX (PRIMARY)
WHERE tenant = %s AND order_id IN %s
ORDER BY order_id
FOR UPDATE
