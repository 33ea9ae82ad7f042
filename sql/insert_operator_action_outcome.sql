-- Notes what came of an operator's action; a second outcome of one action is refused.
-- Primary key, and the action's row is read for the foreign key.
INSERT INTO operator_action_outcome (action_id, outcome, before_image, after_image, detail, finished_ms)
VALUES (%s, %s, %s, %s, %s, %s)
