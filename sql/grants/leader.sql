-- What the account of the leader may do, as its statements need it; `python -m tests.sql.privileges` writes it anew.
GRANT SELECT ON inventory_balance TO 'stockgate_leader';
GRANT SELECT ON inventory_ledger TO 'stockgate_leader';
GRANT SELECT ON inventory_order TO 'stockgate_leader';
GRANT SELECT ON inventory_parked_event TO 'stockgate_leader';
GRANT SELECT ON inventory_request TO 'stockgate_leader';
GRANT SELECT ON inventory_reservation TO 'stockgate_leader';
GRANT SELECT ON schema_migration TO 'stockgate_leader';
GRANT SELECT, UPDATE (applied_digest, applied_m, epoch, mode, rebuild_reason, rebuild_wanted, since_ms, term, wanted_m) ON shard TO 'stockgate_leader';
GRANT INSERT, SELECT, UPDATE ON stale_event TO 'stockgate_leader';
