-- Who of the operators did what, why, and what came of it. A row is written before anything is changed, or with it in one
-- transaction; its outcome follows as a row of its own. An action without an outcome is PENDING, and that is the truth: the
-- process died, or could not say it any more.
-- Both tables are only ever appended to: the accounts of the application need SELECT and INSERT here, never UPDATE or DELETE.

CREATE TABLE operator_action (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    at_ms BIGINT NOT NULL,
    actor VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    tenant VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    action VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    target VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reason VARCHAR(200) NOT NULL,
    request_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    trace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    dry_run TINYINT NOT NULL,
    reconcile_task BIGINT NOT NULL DEFAULT 0,
    KEY operator_action_reconcile_task (reconcile_task),
    CONSTRAINT operator_action_reason CHECK (dry_run = 1 OR reason <> '')
) ENGINE = InnoDB;

CREATE TABLE operator_action_outcome (
    action_id BIGINT NOT NULL PRIMARY KEY,
    outcome VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    before_image VARCHAR(1000) NOT NULL,
    after_image VARCHAR(1000) NOT NULL,
    detail VARCHAR(500) NOT NULL,
    finished_ms BIGINT NOT NULL,
    CONSTRAINT operator_action_outcome_word CHECK (outcome IN ('DONE', 'STOPPED', 'INTERRUPTED')),
    CONSTRAINT operator_action_outcome_of FOREIGN KEY (action_id) REFERENCES operator_action (id)
) ENGINE = InnoDB;

-- Changes by a request number are in the ledger, with who and why. They are few among its rows: this orders them by when
-- they were applied, so that the last ones are found without reading the others.
ALTER TABLE inventory_request
    ADD COLUMN id BIGINT NOT NULL AUTO_INCREMENT,
    ADD UNIQUE KEY inventory_request_id (id);
