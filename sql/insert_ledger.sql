-- Appends one change of one key; a second row for the same change is refused.
-- Primary key in order, so that batches never wait for each other crosswise; inventory_ledger_ref is not unique.
INSERT INTO inventory_ledger
    (inventory_key, seq, shard_no, epoch, m, kind, tenant, ref, line_state, qty, d_available, d_reserved, d_sold, d_consumed,
    d_locked, available, reserved, sold, consumed, locked, inventory_version, due_ms, at_ms, trace_id, actor, reason)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
