-- Audit: orders whose header does not count its lines and its open lines; orders with parked events excepted.
-- One pass over orders and lines by primary key, one snapshot; takes no lock. Parameters: shard, limit.
SELECT o.tenant, o.order_id, o.line_count, o.open_lines, COUNT(r.position) AS lines_found,
    COALESCE(SUM(r.state = 1), 0) AS open_found
FROM inventory_order o
LEFT JOIN inventory_reservation r ON r.tenant = o.tenant AND r.order_id = o.order_id
WHERE o.shard_no = %s
    AND NOT EXISTS (SELECT 1 FROM inventory_parked_event p WHERE p.tenant = o.tenant AND p.ref = o.order_id)
GROUP BY o.tenant, o.order_id, o.line_count, o.open_lines
HAVING lines_found <> o.line_count OR open_found <> o.open_lines
LIMIT %s
