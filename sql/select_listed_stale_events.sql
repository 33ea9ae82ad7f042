-- Finds which of some entries of closed epochs are listed already; the shard, a list of epochs, a list of entry numbers.
-- Unique index stale_event_entry, one range per epoch and entry; no lock.
SELECT epoch, m, digest
FROM stale_event
WHERE shard_no = %s AND epoch IN %s AND m IN %s
