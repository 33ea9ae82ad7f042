-- Writes an order's header, new or changed.
-- Primary key, the only unique one; rows come in its order.
INSERT INTO inventory_order
    (tenant, order_id, shard_no, fingerprint, buyer_id, line_count, open_lines, due_ms, epoch, m, created_ms, updated_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON DUPLICATE KEY UPDATE open_lines = VALUES(open_lines), due_ms = VALUES(due_ms), epoch = VALUES(epoch), m = VALUES(m),
    updated_ms = VALUES(updated_ms)
