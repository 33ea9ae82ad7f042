-- Creates a key's configuration; a second one under the same key or the same request number is refused.
-- Relies on the primary key (inventory_key) and on inventory_config_request (tenant, request_no).
INSERT INTO inventory_config
    (inventory_key, shard_no, item_id, inventory_mode, init_status, init_quantity, tenant, request_no, fingerprint,
     created_by, created_at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, UTC_TIMESTAMP(3));
