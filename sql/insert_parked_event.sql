-- Sets an event of a held key aside.
-- Primary key in order, which is the order of the key's changes.
INSERT INTO inventory_parked_event
    (inventory_key, epoch, m, change_no, shard_no, seq, tenant, ref, payload, reason, parked_ms)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
