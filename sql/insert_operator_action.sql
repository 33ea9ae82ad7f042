-- Notes what an operator is about to do, before it is done or in the same transaction.
-- Appends by primary key; takes no other lock.
INSERT INTO operator_action
    (at_ms, actor, tenant, action, target, reason, request_id, trace_id, dry_run, reconcile_task)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
