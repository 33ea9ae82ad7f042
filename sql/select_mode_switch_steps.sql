-- Reads the steps that a switch has reached, in their order.
-- Range of mode_switch_step's primary key; no lock.
SELECT step, at_ms
FROM mode_switch_step
WHERE switch_id = %s
ORDER BY step_no
