-- What the account of the reconciler may do, as its statements need it; `python -m tests.sql.privileges` writes it anew.
GRANT SELECT ON inventory_balance TO 'stockgate_reconciler';
GRANT SELECT ON inventory_config TO 'stockgate_reconciler';
GRANT SELECT ON inventory_ledger TO 'stockgate_reconciler';
GRANT SELECT ON inventory_order TO 'stockgate_reconciler';
GRANT SELECT ON inventory_parked_event TO 'stockgate_reconciler';
GRANT INSERT, SELECT, UPDATE (cold, detail, drifted, epoch, finished_ms, healthy, in_flight, lost, repaired, started_ms, status, stuck) ON inventory_reconcile_task TO 'stockgate_reconciler';
GRANT INSERT ON inventory_repair_task TO 'stockgate_reconciler';
GRANT SELECT ON inventory_request TO 'stockgate_reconciler';
GRANT SELECT ON inventory_reservation TO 'stockgate_reconciler';
GRANT INSERT, SELECT ON operator_action TO 'stockgate_reconciler';
GRANT INSERT, SELECT ON operator_action_outcome TO 'stockgate_reconciler';
GRANT SELECT ON schema_migration TO 'stockgate_reconciler';
GRANT SELECT, UPDATE (rebuild_reason, rebuild_wanted) ON shard TO 'stockgate_reconciler';
