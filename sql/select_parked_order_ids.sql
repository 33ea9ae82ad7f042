-- Reads the next ids of orders of a shard that have changes which wait for an operator, in the order of
-- inventory_parked_event_ref; no lock. Some are operators' requests: an id too many in a filter costs one look-up.
SELECT DISTINCT tenant, ref
FROM inventory_parked_event
WHERE shard_no = %s AND (tenant > %s OR (tenant = %s AND ref > %s))
ORDER BY tenant, ref
LIMIT %s
