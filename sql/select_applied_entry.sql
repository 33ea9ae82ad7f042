-- Finds the entry by which one change of a key came; the key and its seq.
-- Primary key, one row; no lock.
SELECT epoch, m
FROM inventory_ledger
WHERE inventory_key = %s AND seq = %s
