-- Audit: ledger rows whose after-image is not the one before plus their deltas.
-- One pass over the ledger in primary-key order with a window, one snapshot; takes no lock. Parameters: shard, limit.
SELECT inventory_key, seq, kind, ref
FROM (
    SELECT inventory_key, seq, kind, ref,
        available - d_available - COALESCE(LAG(available) OVER w, 0) AS wrong_available,
        reserved - d_reserved - COALESCE(LAG(reserved) OVER w, 0) AS wrong_reserved,
        sold - d_sold - COALESCE(LAG(sold) OVER w, 0) AS wrong_sold,
        consumed - d_consumed - COALESCE(LAG(consumed) OVER w, 0) AS wrong_consumed,
        locked - d_locked - COALESCE(LAG(locked) OVER w, 0) AS wrong_locked
    FROM inventory_ledger
    WHERE shard_no = %s
    WINDOW w AS (PARTITION BY inventory_key ORDER BY seq)
) steps
WHERE wrong_available <> 0 OR wrong_reserved <> 0 OR wrong_sold <> 0 OR wrong_consumed <> 0 OR wrong_locked <> 0
LIMIT %s
