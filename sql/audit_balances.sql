-- Audit: balances that are negative or do not sum to their total; parameters are the shard and a limit.
-- Full scan in primary-key order, one snapshot; takes no lock.
SELECT inventory_key, available, reserved, sold, consumed, locked, total
FROM inventory_balance
WHERE shard_no = %s
    AND (total <> available + reserved + sold + consumed + locked
        OR LEAST(available, reserved, sold, consumed, locked) < 0)
LIMIT %s
