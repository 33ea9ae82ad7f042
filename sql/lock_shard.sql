-- Locks one shard's row and reads it: whoever writes balances in hot mode holds this lock until COMMIT.
-- Exclusive lock on one row by primary key.
SELECT shard_no, mode, epoch, term, applied_term, applied_m, applied_digest, applied_at_ms, applied_event_ms,
    wanted_m, held_version, rebuild_wanted, rebuild_reason, since_ms, alarm, alarm_detail
FROM shard
WHERE shard_no = %s
FOR UPDATE
