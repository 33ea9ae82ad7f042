-- Reads what some keys are configured as.
-- Relies on the primary key (inventory_key); plain read without locks.
SELECT inventory_key, inventory_mode, init_status
FROM inventory_config
WHERE inventory_key IN %s;
