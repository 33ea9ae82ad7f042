-- What the account of the gateway may do, as its statements need it; `python -m tests.sql.privileges` writes it anew.
GRANT INSERT, SELECT, UPDATE ON inventory_balance TO 'stockgate_gateway';
GRANT INSERT, SELECT ON inventory_config TO 'stockgate_gateway';
GRANT INSERT, SELECT ON inventory_ledger TO 'stockgate_gateway';
GRANT INSERT, SELECT, UPDATE ON inventory_order TO 'stockgate_gateway';
GRANT SELECT ON inventory_parked_event TO 'stockgate_gateway';
GRANT INSERT, SELECT ON inventory_reconcile_task TO 'stockgate_gateway';
GRANT SELECT ON inventory_repair_task TO 'stockgate_gateway';
GRANT INSERT, SELECT ON inventory_request TO 'stockgate_gateway';
GRANT INSERT, SELECT, UPDATE ON inventory_reservation TO 'stockgate_gateway';
GRANT INSERT, SELECT, UPDATE (detail, finished_ms, status) ON mode_switch TO 'stockgate_gateway';
GRANT INSERT, SELECT ON mode_switch_step TO 'stockgate_gateway';
GRANT INSERT, SELECT ON operator_action TO 'stockgate_gateway';
GRANT INSERT, SELECT ON operator_action_outcome TO 'stockgate_gateway';
GRANT SELECT ON schema_migration TO 'stockgate_gateway';
GRANT SELECT, UPDATE (applied_digest, applied_m, epoch, mode, rebuild_reason, rebuild_wanted, since_ms, switch_id, switch_to, term, wanted_m) ON shard TO 'stockgate_gateway';
GRANT INSERT, SELECT, UPDATE ON stale_event TO 'stockgate_gateway';
