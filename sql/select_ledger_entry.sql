-- Whether an entry of an earlier epoch was applied: parameters are key, seq, epoch and m of one of its events.
-- Primary key; takes no lock.
SELECT 1 AS applied
FROM inventory_ledger
WHERE inventory_key = %s AND seq = %s AND epoch = %s AND m = %s
