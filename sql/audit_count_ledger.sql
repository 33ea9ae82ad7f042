-- Audit: how many ledger rows a shard has; the parameter is the shard.
-- Full scan; takes no lock.
SELECT COUNT(*) FROM inventory_ledger WHERE shard_no = %s
