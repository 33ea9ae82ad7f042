-- Reads the balances that a batch touches, under the shard's lock; the parameter is a list of keys.
-- Primary key, one row per key; needs no lock of its own, because every writer holds the shard's.
SELECT inventory_key, available, reserved, sold, consumed, locked, seq, inventory_version, held
FROM inventory_balance
WHERE inventory_key IN %s
