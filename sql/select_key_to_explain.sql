-- Reads all that MySQL says of one key, with its shard, from one snapshot; parameters: the key twice, the shard.
-- One row of each table's primary key; no lock. A row without a key means that MySQL does not know it.
SELECT s.mode, s.epoch, s.applied_m, s.alarm, s.alarm_detail, s.rebuild_wanted, s.rebuild_reason,
    b.available, b.reserved, b.sold, b.consumed, b.locked, b.seq, b.inventory_version, b.held, b.updated_ms,
    c.item_id, c.inventory_mode, c.init_status, c.init_quantity, c.tenant, c.request_no, c.created_by, c.created_at
FROM shard AS s
LEFT JOIN inventory_balance AS b ON b.inventory_key = %s
LEFT JOIN inventory_config AS c ON c.inventory_key = %s
WHERE s.shard_no = %s
