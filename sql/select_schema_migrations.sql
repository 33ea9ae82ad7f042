-- Reads which migrations were begun or finished.
-- Primary key in order, a handful of rows.
SELECT number, name, checksum, statements_done, finished_ms
FROM schema_migration
ORDER BY number
