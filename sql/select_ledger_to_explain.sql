-- Reads a key's ledger from below a seq downwards, with the buyer of each order (kinds 8 to 10 are no orders').
-- Primary key backwards, then one row of inventory_order's primary key each; no lock.
SELECT l.inventory_key, l.seq, l.epoch, l.m, l.kind, l.tenant, l.ref, l.line_state, l.qty,
    l.d_available, l.d_reserved, l.d_sold, l.d_consumed, l.d_locked,
    l.available, l.reserved, l.sold, l.consumed, l.locked, l.inventory_version, l.due_ms, l.at_ms,
    l.trace_id, l.actor, l.reason, COALESCE(o.buyer_id, '')
FROM inventory_ledger AS l
LEFT JOIN inventory_order AS o ON o.tenant = l.tenant AND o.order_id = l.ref AND l.kind NOT BETWEEN 8 AND 10
WHERE l.inventory_key = %s AND l.seq < %s
ORDER BY l.seq DESC
LIMIT %s
