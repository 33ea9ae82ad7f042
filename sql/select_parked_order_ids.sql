-- Reads the next ids of orders of a shard that have changes which wait for an operator, after `(tenant, ref)`. Some are
-- operators' requests: an id too many costs one look-up. Two ranges of inventory_parked_event_ref; no lock.
SELECT DISTINCT tenant, ref
FROM inventory_parked_event
WHERE shard_no = %s AND (tenant > %s OR (tenant = %s AND ref > %s))
ORDER BY tenant, ref
LIMIT %s
