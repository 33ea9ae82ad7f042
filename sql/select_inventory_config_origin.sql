-- Reads by whom and how a key was created, to tell a repeat of that request from another one.
-- Relies on the primary key (inventory_key); plain read without locks.
SELECT tenant, request_no, fingerprint
FROM inventory_config
WHERE inventory_key = %s;
