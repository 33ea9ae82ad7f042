-- What the account of the operator may do, as its statements need it; `python -m tests.sql.privileges` writes it anew.
GRANT INSERT, SELECT, UPDATE ON inventory_balance TO 'stockgate_operator';
GRANT SELECT ON inventory_config TO 'stockgate_operator';
GRANT INSERT, SELECT ON inventory_ledger TO 'stockgate_operator';
GRANT INSERT, SELECT, UPDATE ON inventory_order TO 'stockgate_operator';
GRANT DELETE, INSERT, SELECT ON inventory_parked_event TO 'stockgate_operator';
GRANT SELECT ON inventory_reconcile_task TO 'stockgate_operator';
GRANT INSERT, SELECT ON inventory_repair_task TO 'stockgate_operator';
GRANT INSERT, SELECT ON inventory_request TO 'stockgate_operator';
GRANT INSERT, SELECT, UPDATE ON inventory_reservation TO 'stockgate_operator';
GRANT INSERT, SELECT, UPDATE (detail, finished_ms, status) ON mode_switch TO 'stockgate_operator';
GRANT INSERT, SELECT ON mode_switch_step TO 'stockgate_operator';
GRANT INSERT, SELECT ON operator_action TO 'stockgate_operator';
GRANT INSERT, SELECT ON operator_action_outcome TO 'stockgate_operator';
GRANT SELECT ON schema_migration TO 'stockgate_operator';
GRANT SELECT, UPDATE (alarm, alarm_detail, applied_at_ms, applied_digest, applied_event_ms, applied_m, applied_term, epoch, held_version, mode, rebuild_reason, rebuild_wanted, since_ms, switch_id, switch_to, wanted_m) ON shard TO 'stockgate_operator';
GRANT INSERT, SELECT ON stale_event TO 'stockgate_operator';
