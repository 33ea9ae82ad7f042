-- What the account of the leader may do, as its statements need it; `python -m tests.sql.privileges` writes it anew.
GRANT INSERT, SELECT, UPDATE ON inventory_balance TO 'stockgate_leader';
GRANT INSERT, SELECT ON inventory_ledger TO 'stockgate_leader';
GRANT INSERT, SELECT, UPDATE ON inventory_order TO 'stockgate_leader';
GRANT SELECT ON inventory_parked_event TO 'stockgate_leader';
GRANT INSERT, SELECT ON inventory_request TO 'stockgate_leader';
GRANT INSERT, SELECT, UPDATE ON inventory_reservation TO 'stockgate_leader';
GRANT INSERT, SELECT, UPDATE (detail, finished_ms, status) ON mode_switch TO 'stockgate_leader';
GRANT INSERT, SELECT ON mode_switch_step TO 'stockgate_leader';
GRANT INSERT ON operator_action TO 'stockgate_leader';
GRANT INSERT ON operator_action_outcome TO 'stockgate_leader';
GRANT SELECT ON schema_migration TO 'stockgate_leader';
GRANT SELECT, UPDATE (applied_digest, applied_m, epoch, mode, rebuild_reason, rebuild_wanted, since_ms, switch_id, switch_to, term, wanted_m) ON shard TO 'stockgate_leader';
GRANT INSERT, SELECT, UPDATE ON stale_event TO 'stockgate_leader';
