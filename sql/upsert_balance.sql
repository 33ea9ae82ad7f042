-- Writes what a key has after a batch, and whether it is held.
-- Primary key, the only unique one; rows come in its order.
INSERT INTO inventory_balance
    (inventory_key, shard_no, available, reserved, sold, consumed, locked, total, seq, inventory_version, held, updated_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
ON DUPLICATE KEY UPDATE available = VALUES(available), reserved = VALUES(reserved), sold = VALUES(sold),
    consumed = VALUES(consumed), locked = VALUES(locked), total = VALUES(total), seq = VALUES(seq),
    inventory_version = VALUES(inventory_version), held = VALUES(held), updated_ms = VALUES(updated_ms)
