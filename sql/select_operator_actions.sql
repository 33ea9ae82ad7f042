-- Reads operators' actions from an id downwards, with what came of each.
-- Primary keys of both tables, backwards; no lock.
SELECT a.id, a.at_ms, a.actor, a.tenant, a.action, a.target, a.reason, a.request_id, a.trace_id, a.dry_run,
    a.reconcile_task, COALESCE(o.outcome, 'PENDING'), COALESCE(o.before_image, ''), COALESCE(o.after_image, ''),
    COALESCE(o.detail, ''), COALESCE(o.finished_ms, 0)
FROM operator_action AS a
LEFT JOIN operator_action_outcome AS o ON o.action_id = a.id
WHERE a.id < %s
ORDER BY a.id DESC
LIMIT %s
