-- Lists an entry that came after its epoch had been closed, or a message that is none.
-- Unique index stale_event_entry: listed once; the worker has looked under the shard's lock.
INSERT INTO stale_event (shard_no, epoch, m, term, digest, payload, noted_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s)
