-- Reads an order's ledger rows of all its keys in the order in which they were decided, behind a place in it.
-- Index inventory_ledger_ref, sorted; no lock. Parameters: tenant, order, the place (epoch, m, kind, key, seq), limit.
SELECT l.inventory_key, l.seq, l.epoch, l.m, l.kind, l.tenant, l.ref, l.line_state, l.qty,
    l.d_available, l.d_reserved, l.d_sold, l.d_consumed, l.d_locked,
    l.available, l.reserved, l.sold, l.consumed, l.locked, l.inventory_version, l.due_ms, l.at_ms,
    l.trace_id, l.actor, l.reason, COALESCE(o.buyer_id, '')
FROM inventory_ledger AS l
LEFT JOIN inventory_order AS o ON o.tenant = l.tenant AND o.order_id = l.ref
WHERE l.tenant = %s AND l.ref = %s AND l.kind NOT BETWEEN 8 AND 10
    AND (l.epoch, l.m, l.kind, l.inventory_key, l.seq) > (%s, %s, %s, %s, %s)
ORDER BY l.epoch, l.m, l.kind, l.inventory_key, l.seq
LIMIT %s
