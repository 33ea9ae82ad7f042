-- Reads operators' changes that were accepted, and what each left of its key; a tenant and a list of request numbers.
-- Primary keys of both tables; their rows never change, so it takes no lock.
SELECT q.tenant, q.request_no, q.fingerprint, q.kind, q.inventory_key,
    l.available, l.reserved, l.sold, l.consumed, l.locked, q.seq, l.inventory_version
FROM inventory_request AS q
LEFT JOIN inventory_ledger AS l ON l.inventory_key = q.inventory_key AND l.seq = q.seq
WHERE q.tenant = %s AND q.request_no IN %s
