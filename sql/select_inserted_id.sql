-- The number that the last INSERT of this session drew.
-- No table, no lock; must follow in the same transaction.
SELECT LAST_INSERT_ID()
