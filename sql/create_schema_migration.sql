-- Makes the table that remembers which migrations were applied, and how far.
-- DDL; harmless where the table exists.
CREATE TABLE IF NOT EXISTS schema_migration (
    number INT NOT NULL PRIMARY KEY,
    name VARCHAR(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    checksum CHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    statements_done INT NOT NULL DEFAULT 0,
    finished_ms BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB
