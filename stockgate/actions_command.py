"""`stockgate actions`: what operators did, why, and what came of it."""

import json
from typing import Any

from kernel.settings import Settings
from reconciler.commands import actions
from stockgate.sections import Section, show

COLUMNS = ("at (UTC)", "who", "what", "target", "why", "outcome", "before", "after")


def run(settings: Settings, *, limit: int, before: str, as_json: bool) -> int:
    """Print one page; the exit code says whether it could be read."""
    result = actions(settings, limit=limit, before=before)
    if as_json:
        print(json.dumps(result))  # noqa: T201 -- the command's answer
    elif result["ok"]:
        show([section(result)])
    else:
        show([Section("not read", [result["error"]], style="red")])
    return 0 if result["ok"] else 1


def section(result: dict[str, Any]) -> Section:
    """One page as a table."""
    more = [f"more: stockgate actions --before {result['next_before']}"] if result["next_before"] else []
    return Section("what operators did", more, COLUMNS, [_row(action) for action in result["actions"]])


def _row(action: dict[str, Any]) -> list[str]:
    what = action["action"] + (" (dry run)" if action["dry_run"] else "")
    if action["reconcile_task"]:
        what += f", task {action['reconcile_task']}"
    why = action["reason"] + (f" (approval {action['approval_no']})" if action["approval_no"] else "")
    outcome = action["outcome"] + (f": {action['detail']}" if action["detail"] else "")
    at = str(action["at"])[:19].replace("T", " ")
    return [at, action["actor"], what, action["target"], why, outcome, action["before"], action["after"]]
