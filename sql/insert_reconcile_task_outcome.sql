-- Notes what came of the action that asked for a comparison, unless that is noted: a task may be run twice.
-- Index operator_action_reconcile_task; the caller has changed the task's row in the same transaction, so one goes first.
INSERT INTO operator_action_outcome (action_id, outcome, before_image, after_image, detail, finished_ms)
SELECT a.id, %s, '', %s, %s, %s
FROM operator_action AS a
LEFT JOIN operator_action_outcome AS o ON o.action_id = a.id
WHERE a.reconcile_task = %s AND o.action_id IS NULL
