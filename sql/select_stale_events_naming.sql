-- Finds stale entries in whose payload some text occurs, the newest first; shard, text, how many.
-- Reads the whole table, which holds exceptions only; no lock. Who asks decodes them: the text may stand there by chance.
SELECT epoch, m, payload, noted_ms
FROM stale_event
WHERE shard_no = %s AND LOCATE(CAST(%s AS BINARY), payload) > 0
ORDER BY id DESC
LIMIT %s
