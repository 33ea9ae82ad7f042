-- Writes a line of a new order, of which the same transaction has inserted the header.
-- Primary key, the only unique one; rows come in its order.
INSERT INTO inventory_reservation
    (tenant, order_id, position, inventory_key, qty, state, reason, epoch, seq, updated_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
