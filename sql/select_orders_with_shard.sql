-- Reads the headers of the orders asked for, `((tenant, order_id), …)`, with what the shard has applied: one snapshot.
-- One range of inventory_order's primary key per order; no lock. A single row without an order means that none is known.
SELECT s.epoch, s.applied_m, s.applied_digest, EXISTS (SELECT 1 FROM inventory_parked_event),
    o.tenant, o.order_id, o.fingerprint, o.due_ms, o.buyer_id, o.created_ms, o.line_count
FROM shard AS s
LEFT JOIN inventory_order AS o ON (o.tenant, o.order_id) IN %s
WHERE s.shard_no = %s
