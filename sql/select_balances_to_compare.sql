-- Reads balances to be compared with Redis: before Redis is read, never after.
-- Primary key; takes no lock.
SELECT inventory_key, available, reserved, sold, consumed, locked, seq, held
FROM inventory_balance
WHERE inventory_key IN %s
