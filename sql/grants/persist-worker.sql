-- What the account of the persist-worker may do, as its statements need it; `python -m tests.sql.privileges` writes it anew.
GRANT INSERT, SELECT, UPDATE ON inventory_balance TO 'stockgate_persist_worker';
GRANT INSERT, SELECT ON inventory_ledger TO 'stockgate_persist_worker';
GRANT INSERT, SELECT, UPDATE ON inventory_order TO 'stockgate_persist_worker';
GRANT INSERT, SELECT ON inventory_parked_event TO 'stockgate_persist_worker';
GRANT INSERT, SELECT ON inventory_request TO 'stockgate_persist_worker';
GRANT INSERT, SELECT, UPDATE ON inventory_reservation TO 'stockgate_persist_worker';
GRANT SELECT ON schema_migration TO 'stockgate_persist_worker';
GRANT SELECT, UPDATE (alarm, alarm_detail, applied_at_ms, applied_digest, applied_event_ms, applied_m, applied_term, epoch, held_version, mode, rebuild_reason, rebuild_wanted, since_ms, wanted_m) ON shard TO 'stockgate_persist_worker';
GRANT INSERT, SELECT ON stale_event TO 'stockgate_persist_worker';
