-- Reads the balances that operations may change; the parameter is a list of keys.
-- Primary key: locks the rows in its order, so that two who decide never wait for each other crosswise.
SELECT inventory_key, available, reserved, sold, consumed, locked, seq, inventory_version, held
FROM inventory_balance FORCE INDEX (PRIMARY)
WHERE inventory_key IN %s
ORDER BY inventory_key
FOR UPDATE
