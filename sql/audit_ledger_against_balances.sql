-- Audit: keys whose ledger is not dense up to their seq, or whose deltas do not add up to their balance.
-- One pass over the ledger in primary-key order, one snapshot; takes no lock. Parameters: shard, limit.
SELECT b.inventory_key, b.seq, COUNT(l.seq) AS ledger_rows, COALESCE(MAX(l.seq), 0) AS ledger_seq,
    COALESCE(SUM(l.d_available), 0) AS available, COALESCE(SUM(l.d_reserved), 0) AS reserved,
    COALESCE(SUM(l.d_sold), 0) AS sold, COALESCE(SUM(l.d_consumed), 0) AS consumed, COALESCE(SUM(l.d_locked), 0) AS locked
FROM inventory_balance b
LEFT JOIN inventory_ledger l ON l.inventory_key = b.inventory_key
WHERE b.shard_no = %s
GROUP BY b.inventory_key, b.seq, b.available, b.reserved, b.sold, b.consumed, b.locked
HAVING ledger_rows <> b.seq OR ledger_seq <> b.seq OR available <> b.available OR reserved <> b.reserved OR sold <> b.sold
    OR consumed <> b.consumed OR locked <> b.locked
LIMIT %s
