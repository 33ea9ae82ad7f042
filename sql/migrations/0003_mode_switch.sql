-- Who decides is switched by wishes: one row for each switch, whose steps the leader appends as they happen. The shard's row
-- names the one that runs; every transaction that begins, aborts, moves on or ends a switch locks that row first.

ALTER TABLE shard
    ADD COLUMN switch_id BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN switch_to VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    ADD CONSTRAINT shard_switch CHECK ((switch_id = 0 AND switch_to = '') OR (switch_id > 0 AND switch_to IN ('hot', 'db')));

CREATE TABLE mode_switch (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    shard_no INT NOT NULL,
    to_mode VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reason VARCHAR(200) NOT NULL,
    requested_by VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    requested_ms BIGINT NOT NULL,
    action_id BIGINT NOT NULL,
    status VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'RUNNING',
    finished_ms BIGINT NOT NULL DEFAULT 0,
    detail VARCHAR(500) NOT NULL DEFAULT '',
    KEY mode_switch_shard (shard_no, id),
    CONSTRAINT mode_switch_to CHECK (to_mode IN ('hot', 'db')),
    CONSTRAINT mode_switch_status CHECK (status IN ('RUNNING', 'DONE', 'ABORTED', 'FAILED')),
    CONSTRAINT mode_switch_reason CHECK (reason <> ''),
    CONSTRAINT mode_switch_finished CHECK ((status = 'RUNNING') = (finished_ms = 0)),
    CONSTRAINT mode_switch_action FOREIGN KEY (action_id) REFERENCES operator_action (id)
) ENGINE = InnoDB;

-- Each step once: a leader that goes on where another one died repeats steps, and what counts is when they were first reached.
CREATE TABLE mode_switch_step (
    switch_id BIGINT NOT NULL,
    step_no INT NOT NULL,
    step VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (switch_id, step_no),
    UNIQUE KEY mode_switch_step_once (switch_id, step),
    CONSTRAINT mode_switch_step_of FOREIGN KEY (switch_id) REFERENCES mode_switch (id)
) ENGINE = InnoDB;
