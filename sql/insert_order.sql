-- Writes the header of a new order; that it is new is decided here, for two may insert it at once.
-- Primary key, the only unique one: the second waits for the first and is refused; rows come in its order.
INSERT INTO inventory_order
    (tenant, order_id, shard_no, fingerprint, buyer_id, line_count, open_lines, due_ms, epoch, m, created_ms, updated_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
