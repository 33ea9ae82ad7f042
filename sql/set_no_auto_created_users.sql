-- Makes GRANT refuse an account that does not exist: MariaDB would make one without a password.
-- The session's mode; takes no lock. MySQL 8 knows no other way and has no such word.
SET SESSION sql_mode = CONCAT(@@SESSION.sql_mode, '' /*M!100300 ',NO_AUTO_CREATE_USER' */)
