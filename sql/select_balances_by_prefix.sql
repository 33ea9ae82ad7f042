-- Reads the balances of all keys that begin with a prefix; the parameter is a LIKE pattern.
-- Range of the primary key; takes no lock.
SELECT inventory_key, available, reserved, sold, consumed, locked
FROM inventory_balance
WHERE inventory_key LIKE %s
