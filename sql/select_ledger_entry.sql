-- Whether an entry of an earlier epoch was applied: parameters are key, seq, epoch, m, tenant, ref and at_ms of its first
-- event; a forked log gives other changes the same numbers. Primary key; takes no lock.
SELECT 1 AS applied
FROM inventory_ledger
WHERE inventory_key = %s AND seq = %s AND epoch = %s AND m = %s AND tenant = %s AND ref = %s AND at_ms = %s
