-- Counts the ledger rows of all keys that begin with a prefix; the parameter is a LIKE pattern.
-- Range of the primary key; takes no lock.
SELECT COUNT(*)
FROM inventory_ledger
WHERE inventory_key LIKE %s
