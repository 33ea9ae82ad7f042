-- Writes a line of an order, new or changed; key and quantity of a line never change.
-- Primary key, the only unique one; rows come in its order.
INSERT INTO inventory_reservation
    (tenant, order_id, position, inventory_key, qty, state, reason, epoch, seq, updated_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON DUPLICATE KEY UPDATE state = VALUES(state), reason = VALUES(reason), epoch = VALUES(epoch), seq = VALUES(seq),
    updated_ms = VALUES(updated_ms)
