-- Audit: how many orders a shard has; the parameter is the shard.
-- Index inventory_order_due; takes no lock.
SELECT COUNT(*) FROM inventory_order WHERE shard_no = %s
