-- Reads one switch of a shard's mode.
-- Primary key; no lock.
SELECT id, shard_no, to_mode, reason, requested_by, requested_ms, status, finished_ms, detail, action_id
FROM mode_switch
WHERE id = %s AND shard_no = %s
