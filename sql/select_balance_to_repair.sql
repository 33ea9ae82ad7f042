-- Reads one balance and its shard.
-- Primary key; no lock.
SELECT shard_no, available, reserved, sold, consumed, locked, seq, inventory_version, held
FROM inventory_balance
WHERE inventory_key = %s
