-- Lets go the keys that waited for their shard to be rebuilt: its epoch is closed.
-- Index inventory_balance_held; the shard's lock is held.
UPDATE inventory_balance
SET held = 0
WHERE shard_no = %s AND held = 2
