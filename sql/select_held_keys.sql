-- Reads the keys that are held until an operator has looked at them; parameters are the shard and a limit.
-- Index inventory_balance_held; takes no lock.
SELECT inventory_key
FROM inventory_balance
WHERE shard_no = %s AND held > 0
ORDER BY inventory_key
LIMIT %s
