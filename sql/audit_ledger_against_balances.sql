-- Audit: keys whose ledger is not dense up to their seq, or whose deltas do not add up to their balance.
-- One pass over the ledger in primary-key order, one snapshot; takes no lock. Parameters: shard, limit.
-- An alias must not be the name of a grouped column: HAVING would take the column, and compare it with itself.
SELECT b.inventory_key, b.seq, COUNT(l.seq) AS ledger_rows, COALESCE(MAX(l.seq), 0) AS ledger_seq,
    COALESCE(SUM(l.d_available), 0) AS ledger_available, COALESCE(SUM(l.d_reserved), 0) AS ledger_reserved,
    COALESCE(SUM(l.d_sold), 0) AS ledger_sold, COALESCE(SUM(l.d_consumed), 0) AS ledger_consumed,
    COALESCE(SUM(l.d_locked), 0) AS ledger_locked
FROM inventory_balance b
LEFT JOIN inventory_ledger l ON l.inventory_key = b.inventory_key
WHERE b.shard_no = %s
GROUP BY b.inventory_key, b.seq, b.available, b.reserved, b.sold, b.consumed, b.locked
HAVING ledger_rows <> b.seq OR ledger_seq <> b.seq OR ledger_available <> b.available OR ledger_reserved <> b.reserved
    OR ledger_sold <> b.sold OR ledger_consumed <> b.consumed OR ledger_locked <> b.locked
LIMIT %s
