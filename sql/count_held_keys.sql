-- Counts the keys of a shard that are held.
-- Index inventory_balance_held; no lock.
SELECT COUNT(*) AS held
FROM inventory_balance
WHERE shard_no = %s AND held > 0
