-- Reads what the leader acts on, with MySQL's clock (UTC epoch ms) of the same moment.
-- Primary key; takes no lock, so it never waits for the worker's transaction.
SELECT mode, epoch, term, applied_term, applied_m, applied_digest, applied_event_ms, wanted_m, held_version, rebuild_wanted,
    rebuild_reason, switch_id, switch_to, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) AS now_ms
FROM shard
WHERE shard_no = %s
