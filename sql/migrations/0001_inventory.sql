-- The tables of the inventory: MySQL is the authority, and its checks refuse what must never be.
-- Keeps to what MySQL 8 and MariaDB 10.11 both do. Identifiers compare byte for byte; the trailing-space rule of
-- ascii_bin is harmless because neither keys nor ids may end in a space.

CREATE TABLE shard (
    shard_no INT NOT NULL PRIMARY KEY,
    mode VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'opening',
    epoch BIGINT NOT NULL DEFAULT 0,
    term BIGINT NOT NULL DEFAULT 0,
    applied_term BIGINT NOT NULL DEFAULT 0,
    applied_m BIGINT NOT NULL DEFAULT 0,
    applied_digest CHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    applied_at_ms BIGINT NOT NULL DEFAULT 0,
    applied_event_ms BIGINT NOT NULL DEFAULT 0,
    wanted_m BIGINT NOT NULL DEFAULT 0,
    held_version BIGINT NOT NULL DEFAULT 0,
    rebuild_wanted BIGINT NOT NULL DEFAULT 0,
    rebuild_reason VARCHAR(200) NOT NULL DEFAULT '',
    since_ms BIGINT NOT NULL DEFAULT 0,
    alarm VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    alarm_detail VARCHAR(500) NOT NULL DEFAULT '',
    CONSTRAINT shard_mode CHECK (mode IN ('hot', 'db', 'opening')),
    CONSTRAINT shard_counters CHECK (epoch >= 0 AND applied_m >= 0 AND applied_term <= term AND wanted_m >= 0)
) ENGINE = InnoDB;

INSERT INTO shard (shard_no) VALUES (0);

CREATE TABLE inventory_config (
    inventory_key VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    shard_no INT NOT NULL,
    item_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    inventory_mode VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    init_status VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    init_quantity BIGINT NOT NULL,
    tenant VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    request_no VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    fingerprint CHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_by VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_at DATETIME(3) NOT NULL,
    UNIQUE KEY inventory_config_request (tenant, request_no),
    CONSTRAINT inventory_config_mode CHECK (inventory_mode IN ('QTY', 'SYS_GEN', 'EXT_POOL')),
    CONSTRAINT inventory_config_status CHECK (init_status IN ('READY', 'PENDING_IMPORT', 'PENDING_GEN')),
    CONSTRAINT inventory_config_quantity CHECK (init_quantity >= 0)
) ENGINE = InnoDB;

CREATE TABLE inventory_balance (
    inventory_key VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    shard_no INT NOT NULL,
    available BIGINT NOT NULL DEFAULT 0,
    reserved BIGINT NOT NULL DEFAULT 0,
    sold BIGINT NOT NULL DEFAULT 0,
    consumed BIGINT NOT NULL DEFAULT 0,
    locked BIGINT NOT NULL DEFAULT 0,
    total BIGINT NOT NULL DEFAULT 0,
    seq BIGINT NOT NULL DEFAULT 0,
    inventory_version BIGINT NOT NULL DEFAULT 0,
    held TINYINT NOT NULL DEFAULT 0,
    updated_ms BIGINT NOT NULL DEFAULT 0,
    KEY inventory_balance_held (shard_no, held),
    CONSTRAINT inventory_balance_not_negative
        CHECK (available >= 0 AND reserved >= 0 AND sold >= 0 AND consumed >= 0 AND locked >= 0),
    CONSTRAINT inventory_balance_conserved CHECK (total = available + reserved + sold + consumed + locked)
) ENGINE = InnoDB;

CREATE TABLE inventory_order (
    tenant VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    order_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    shard_no INT NOT NULL,
    fingerprint CHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    buyer_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    line_count INT NOT NULL,
    open_lines INT NOT NULL,
    due_ms BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    m BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, order_id),
    KEY inventory_order_due (shard_no, open_lines, due_ms),
    CONSTRAINT inventory_order_lines CHECK (open_lines >= 0 AND open_lines <= line_count)
) ENGINE = InnoDB;

CREATE TABLE inventory_reservation (
    tenant VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    order_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    position INT NOT NULL,
    inventory_key VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    qty BIGINT NOT NULL,
    state TINYINT NOT NULL,
    reason VARCHAR(200) NOT NULL,
    epoch BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (tenant, order_id, position),
    KEY inventory_reservation_key (inventory_key, state),
    CONSTRAINT inventory_reservation_qty CHECK (qty > 0),
    CONSTRAINT inventory_reservation_state CHECK (state BETWEEN 1 AND 5)
) ENGINE = InnoDB;

CREATE TABLE inventory_request (
    tenant VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    request_no VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    inventory_key VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    kind TINYINT NOT NULL,
    fingerprint CHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    PRIMARY KEY (tenant, request_no)
) ENGINE = InnoDB;

CREATE TABLE inventory_ledger (
    inventory_key VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    seq BIGINT NOT NULL,
    shard_no INT NOT NULL,
    epoch BIGINT NOT NULL,
    m BIGINT NOT NULL,
    kind TINYINT NOT NULL,
    tenant VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ref VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    line_state TINYINT NOT NULL,
    qty BIGINT NOT NULL,
    d_available BIGINT NOT NULL,
    d_reserved BIGINT NOT NULL,
    d_sold BIGINT NOT NULL,
    d_consumed BIGINT NOT NULL,
    d_locked BIGINT NOT NULL,
    available BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    sold BIGINT NOT NULL,
    consumed BIGINT NOT NULL,
    locked BIGINT NOT NULL,
    inventory_version BIGINT NOT NULL,
    due_ms BIGINT NOT NULL,
    at_ms BIGINT NOT NULL,
    trace_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    actor VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    reason VARCHAR(200) NOT NULL,
    PRIMARY KEY (inventory_key, seq),
    KEY inventory_ledger_ref (tenant, ref),
    CONSTRAINT inventory_ledger_not_negative
        CHECK (available >= 0 AND reserved >= 0 AND sold >= 0 AND consumed >= 0 AND locked >= 0)
) ENGINE = InnoDB;

CREATE TABLE inventory_parked_event (
    inventory_key VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch BIGINT NOT NULL,
    m BIGINT NOT NULL,
    change_no INT NOT NULL,
    shard_no INT NOT NULL,
    seq BIGINT NOT NULL,
    tenant VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ref VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    payload MEDIUMBLOB NOT NULL,
    reason VARCHAR(500) NOT NULL,
    parked_ms BIGINT NOT NULL,
    PRIMARY KEY (inventory_key, epoch, m, change_no),
    KEY inventory_parked_event_ref (tenant, ref)
) ENGINE = InnoDB;

CREATE TABLE stale_event (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    shard_no INT NOT NULL,
    epoch BIGINT NOT NULL,
    m BIGINT NOT NULL,
    term BIGINT NOT NULL,
    digest CHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    payload MEDIUMBLOB NOT NULL,
    noted_ms BIGINT NOT NULL,
    UNIQUE KEY stale_event_entry (shard_no, epoch, m, digest)
) ENGINE = InnoDB;

CREATE TABLE inventory_reconcile_task (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    shard_no INT NOT NULL,
    epoch BIGINT NOT NULL,
    scope VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    dry_run TINYINT NOT NULL,
    keys_wanted MEDIUMTEXT NOT NULL,
    status VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    cold BIGINT NOT NULL DEFAULT 0,
    in_flight BIGINT NOT NULL DEFAULT 0,
    healthy BIGINT NOT NULL DEFAULT 0,
    drifted BIGINT NOT NULL DEFAULT 0,
    lost BIGINT NOT NULL DEFAULT 0,
    repaired BIGINT NOT NULL DEFAULT 0,
    stuck BIGINT NOT NULL DEFAULT 0,
    detail VARCHAR(500) NOT NULL DEFAULT '',
    requested_by VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    started_ms BIGINT NOT NULL,
    finished_ms BIGINT NOT NULL DEFAULT 0,
    KEY inventory_reconcile_task_status (status)
) ENGINE = InnoDB;

CREATE TABLE inventory_repair_task (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    shard_no INT NOT NULL,
    kind VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    inventory_key VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    class VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    status VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    before_image VARCHAR(500) NOT NULL,
    after_image VARCHAR(500) NOT NULL,
    reason VARCHAR(200) NOT NULL,
    requested_by VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    created_ms BIGINT NOT NULL,
    finished_ms BIGINT NOT NULL DEFAULT 0,
    KEY inventory_repair_task_status (status),
    KEY inventory_repair_task_key (inventory_key)
) ENGINE = InnoDB;
