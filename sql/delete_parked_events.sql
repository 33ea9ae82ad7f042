-- Takes away the parked events of a key up to one that is done: (key, epoch, m, change).
-- Range of the primary key.
DELETE FROM inventory_parked_event
WHERE inventory_key = %s AND (epoch < %s OR (epoch = %s AND (m < %s OR (m = %s AND change_no <= %s))))
