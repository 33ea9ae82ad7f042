-- Begins a switch of a shard's mode, whose action stands in the operators' audit table.
-- Appends by primary key, and reads the action's row for the foreign key; the shard's row was locked by the same transaction.
INSERT INTO mode_switch (shard_no, to_mode, reason, requested_by, requested_ms, action_id)
VALUES (%s, %s, %s, %s, %s, %s)
