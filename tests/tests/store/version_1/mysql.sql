CREATE TABLE IF NOT EXISTS `outbox_migration` (
    component VARCHAR(64) NOT NULL,
    version INT NOT NULL,
    applied_at DATETIME(6) NOT NULL,
    PRIMARY KEY (component, version)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS `outbox_held` (
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    target VARCHAR(64) NOT NULL,
    seq BIGINT,
    reason VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    due_at DATETIME(6) NOT NULL,
    attempts INT NOT NULL,
    first_error TEXT,
    last_error TEXT,
    held_at DATETIME(6) NOT NULL,
    changed_at DATETIME(6) NOT NULL,
    message_id BINARY(16) NOT NULL,
    event_type VARCHAR(255) NOT NULL,
    event_version INT NOT NULL,
    subject VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ordering_key VARBINARY(255),
    headers MEDIUMTEXT NOT NULL,
    payload LONGBLOB NOT NULL,
    payload_size INT UNSIGNED GENERATED ALWAYS AS (OCTET_LENGTH(payload)) STORED,
    occurred_at DATETIME(6) NOT NULL,
    KEY `outbox_held_due` (target, reason, due_at),
    KEY `outbox_held_key` (target, ordering_key, seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS `outbox_lease` (
    target VARCHAR(64) NOT NULL PRIMARY KEY,
    owner BINARY(16),
    epoch BIGINT NOT NULL,
    leased_until DATETIME(6) NOT NULL,
    lease_ms BIGINT NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS `inbox` (
    message_id BINARY(16) NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    processed_at DATETIME(6) NOT NULL,
    PRIMARY KEY (message_id, consumer),
    KEY `inbox_processed` (processed_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

CREATE TABLE IF NOT EXISTS `inbox_attempt` (
    message_id BINARY(16) NOT NULL,
    consumer VARCHAR(255) NOT NULL,
    attempts INT NOT NULL,
    open_starts INT NOT NULL,
    lone_starts INT NOT NULL,
    uncounted INT NOT NULL,
    first_error TEXT,
    last_error TEXT,
    first_failed_at DATETIME(6),
    last_failed_at DATETIME(6),
    changed_at DATETIME(6) NOT NULL,
    PRIMARY KEY (message_id, consumer),
    KEY `inbox_attempt_changed` (changed_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

INSERT INTO `outbox_migration` (component, version, applied_at) SELECT 'shared', 1, UTC_TIMESTAMP(6) FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM `outbox_migration` WHERE component = 'shared' AND version = 1);

CREATE TABLE IF NOT EXISTS `outbox` (
    seq BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    message_id BINARY(16) NOT NULL,
    event_type VARCHAR(255) NOT NULL,
    event_version INT NOT NULL,
    subject VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ordering_key VARBINARY(255),
    headers MEDIUMTEXT NOT NULL,
    payload LONGBLOB NOT NULL,
    payload_size INT UNSIGNED GENERATED ALWAYS AS (OCTET_LENGTH(payload)) STORED,
    occurred_at DATETIME(6) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin;

INSERT INTO `outbox_migration` (component, version, applied_at) SELECT 'outbox outbox', 1, UTC_TIMESTAMP(6) FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM `outbox_migration` WHERE component = 'outbox outbox' AND version = 1);
