-- Says why a switch waits.
-- Primary key with compare-and-set on the status; one row or none.
UPDATE mode_switch
SET detail = %s
WHERE id = %s AND status = 'RUNNING'
