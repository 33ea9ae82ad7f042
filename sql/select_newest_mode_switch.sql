-- Reads a shard's newest switch, the running one if there is one.
-- Index mode_switch_shard, backwards, one row; no lock.
SELECT id, shard_no, to_mode, reason, requested_by, requested_ms, status, finished_ms, detail, action_id
FROM mode_switch
WHERE shard_no = %s
ORDER BY id DESC
LIMIT 1
