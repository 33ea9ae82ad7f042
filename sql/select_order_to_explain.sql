-- Reads an order's header with its shard, from one snapshot; a row without an order means that MySQL does not know it.
-- Primary keys of both tables; no lock.
SELECT s.mode, s.epoch, s.applied_m, s.alarm, s.alarm_detail, s.rebuild_wanted, s.rebuild_reason,
    o.buyer_id, o.line_count, o.open_lines, o.due_ms, o.created_ms, o.updated_ms
FROM shard AS s
LEFT JOIN inventory_order AS o ON o.tenant = %s AND o.order_id = %s
WHERE s.shard_no = %s
