-- Lists an entry that a closed epoch left in Redis unpublished; an entry listed before is left as it is.
-- Unique key stale_event_entry.
INSERT INTO stale_event (shard_no, epoch, m, term, digest, payload, noted_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s)
ON DUPLICATE KEY UPDATE id = id
