-- Keeps a connection from being idle.
-- No table, no lock.
SELECT 1 AS one
