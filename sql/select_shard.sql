-- Reads one shard's row: its mode, epoch, term, and how far MySQL has applied its log.
-- A consistent read of one row by primary key; takes no lock, so that the worker's transactions never hold it up.
SELECT shard_no, mode, epoch, term, applied_term, applied_m, applied_digest, applied_at_ms, applied_event_ms,
    wanted_m, held_version, rebuild_wanted, rebuild_reason, since_ms, alarm, alarm_detail
FROM shard
WHERE shard_no = %s
