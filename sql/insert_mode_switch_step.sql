-- Notes a step that a switch has reached.
-- Primary key, and the switch's row is read for the foreign key; the shard's row was locked by the same transaction.
INSERT INTO mode_switch_step (switch_id, step_no, step, at_ms)
VALUES (%s, %s, %s, %s)
