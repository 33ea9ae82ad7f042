-- Reads the quantities of some keys together with what the shard has applied, from one snapshot.
-- One row of inventory_balance's primary key per key; no lock. A single row without a key means that none is known.
SELECT s.epoch, s.applied_m, s.applied_digest,
    b.inventory_key, b.available, b.reserved, b.sold, b.consumed, b.locked, b.seq, b.inventory_version, b.held
FROM shard AS s
LEFT JOIN inventory_balance AS b ON b.inventory_key IN %s
WHERE s.shard_no = %s
