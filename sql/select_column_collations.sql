-- Reads by which collation the columns of the given names compare, in the database in use.
-- The server's dictionary of one database; takes no lock.
SELECT table_name, column_name, collation_name
FROM information_schema.columns
WHERE table_schema = DATABASE() AND column_name IN %s AND collation_name IS NOT NULL
ORDER BY table_name, ordinal_position
