-- Ends a switch: parameters are status, ms, detail and the switch.
-- Primary key with compare-and-set on the status; the shard's row was locked by the same transaction.
UPDATE mode_switch
SET status = %s, finished_ms = %s, detail = %s
WHERE id = %s AND status = 'RUNNING'
