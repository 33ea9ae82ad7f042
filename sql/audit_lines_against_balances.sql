-- Audit: keys of which the lines held, sold and consumed do not add up to reserved, sold and consumed; held keys excepted.
-- Index inventory_reservation_key for each key, one snapshot; takes no lock. Parameters: shard, limit.
SELECT b.inventory_key, b.reserved, b.sold, b.consumed,
    COALESCE(SUM(CASE WHEN r.state = 1 THEN r.qty END), 0) AS lines_reserved,
    COALESCE(SUM(CASE WHEN r.state = 2 THEN r.qty END), 0) AS lines_sold,
    COALESCE(SUM(CASE WHEN r.state = 4 THEN r.qty END), 0) AS lines_consumed
FROM inventory_balance b
LEFT JOIN inventory_reservation r ON r.inventory_key = b.inventory_key
WHERE b.shard_no = %s AND b.held = 0
GROUP BY b.inventory_key, b.reserved, b.sold, b.consumed
HAVING lines_reserved <> b.reserved OR lines_sold <> b.sold OR lines_consumed <> b.consumed
LIMIT %s
