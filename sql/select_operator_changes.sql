-- Reads operators' changes of stock from an id downwards. One whose number holds a space is a key's creation: see catalogue.py.
-- Unique key inventory_request_id backwards, then one row of inventory_ledger's primary key each; no lock.
SELECT r.id, l.at_ms, l.actor, l.tenant, l.kind, l.inventory_key, l.reason, l.ref, l.trace_id, l.seq,
    l.available, l.reserved, l.sold, l.consumed, l.locked,
    l.d_available, l.d_reserved, l.d_sold, l.d_consumed, l.d_locked, COALESCE(c.request_no, '')
FROM inventory_request AS r
JOIN inventory_ledger AS l ON l.inventory_key = r.inventory_key AND l.seq = r.seq
LEFT JOIN inventory_config AS c ON c.inventory_key = r.inventory_key AND LOCATE(' ', r.request_no) > 0
WHERE r.id < %s
ORDER BY r.id DESC
LIMIT %s
