-- Reads the operators' changes asked for, `((tenant, request_no), …)`, and what each left of its key: one snapshot.
-- One range of inventory_request's primary key per request, the ledger row by its own; no lock.
SELECT s.epoch, s.applied_m, s.applied_digest, EXISTS (SELECT 1 FROM inventory_parked_event),
    q.tenant, q.request_no, q.fingerprint, q.kind, q.inventory_key,
    l.available, l.reserved, l.sold, l.consumed, l.locked, q.seq, l.inventory_version
FROM shard AS s
LEFT JOIN inventory_request AS q ON (q.tenant, q.request_no) IN %s
LEFT JOIN inventory_ledger AS l ON l.inventory_key = q.inventory_key AND l.seq = q.seq
WHERE s.shard_no = %s
