-- Counts the events of a shard that wait for an operator.
-- Walks the primary key: a few thousand rows at most in any sane hour, and a bound stands above it.
SELECT COUNT(*) AS parked
FROM inventory_parked_event
WHERE shard_no = %s
