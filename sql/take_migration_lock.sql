-- Waits a second for the lock that only one migrator of this database has; answers 1 when it is taken.
-- The server's named lock, bound to this connection; the name is hashed because it may have 64 characters only.
SELECT GET_LOCK(CONCAT('stockgate.', SHA1(DATABASE())), 1) AS taken
