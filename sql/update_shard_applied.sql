-- Moves the shard's row to what the worker has applied, obeyed and found.
-- Primary key; the row was locked by the same transaction.
UPDATE shard
SET mode = %s, epoch = %s, applied_term = %s, applied_m = %s, applied_digest = %s, applied_at_ms = %s, applied_event_ms = %s,
    wanted_m = %s, held_version = %s, rebuild_wanted = %s, rebuild_reason = %s, since_ms = %s, alarm = %s, alarm_detail = %s
WHERE shard_no = %s
