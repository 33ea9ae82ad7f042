-- Reads a page of orders with a hold past due while MySQL decides: shard, grace in ms, the numbers of open lines with a range
-- of their own, the highest of them, the place after which the page begins (due_ms, tenant, order_id), limit.
-- Index inventory_order_due: one short range up to now for each number of open lines; takes no lock.
SELECT o.due_ms, o.tenant, o.order_id
FROM shard AS s
JOIN inventory_order AS o ON o.shard_no = s.shard_no
WHERE s.shard_no = %s AND s.mode = 'db' AND s.since_ms + %s <= UNIX_TIMESTAMP(NOW(3)) * 1000
    AND (o.open_lines IN %s OR o.open_lines > %s) AND o.due_ms <= UNIX_TIMESTAMP(NOW(3)) * 1000
    AND (o.due_ms, o.tenant, o.order_id) > (%s, %s, %s)
ORDER BY o.due_ms, o.tenant, o.order_id
LIMIT %s
