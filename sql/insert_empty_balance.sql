-- Gives a new key its balance of nothing: a balance row exists before its key can sell.
-- Relies on the primary key (inventory_key); runs in the transaction that creates the key's configuration.
INSERT INTO inventory_balance (inventory_key, shard_no) VALUES (%s, %s);
