-- Audit: lines that took a step twice, or gave their stock back twice; parameters are the shard and a limit.
-- Index inventory_ledger_ref or a full scan, one snapshot; takes no lock.
SELECT tenant, ref, inventory_key, SUM(kind = 1) AS reserved, SUM(kind = 3) AS confirmed, SUM(kind = 4) AS released,
    SUM(kind = 6) AS consumed, SUM(kind = 7) AS returned
FROM inventory_ledger
WHERE shard_no = %s AND kind IN (1, 3, 4, 6, 7)
GROUP BY tenant, ref, inventory_key
HAVING reserved <> 1 OR confirmed > 1 OR released > 1 OR consumed > 1 OR returned > 1 OR released + consumed + returned > 1
    OR released + confirmed > 1 OR consumed + returned > confirmed
LIMIT %s
