-- Remembers that a migration begins.
-- Primary key.
INSERT INTO schema_migration (number, name, checksum)
VALUES (%s, %s, %s)
