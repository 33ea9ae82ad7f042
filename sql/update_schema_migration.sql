-- Remembers how many statements of a migration are done, and when the last one was.
-- Primary key.
UPDATE schema_migration
SET statements_done = %s, finished_ms = %s
WHERE number = %s
