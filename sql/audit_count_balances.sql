-- Audit: how many keys a shard has; the parameter is the shard.
-- Full scan or index inventory_balance_held; takes no lock.
SELECT COUNT(*) FROM inventory_balance WHERE shard_no = %s
