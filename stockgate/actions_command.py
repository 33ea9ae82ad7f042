"""`stockgate actions`: what operators did, why, and what came of it."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernel.settings import Settings
from reconciler.commands import actions
from stockgate.plain_text import plain

NOTHING = "no operator has changed anything"
COLUMNS = ("at (UTC)", "who", "what", "target", "why", "outcome", "before", "after")


def run(settings: Settings, *, limit: int, before: str, as_json: bool) -> int:
    """Print one page; the exit code says whether it could be read."""
    result = actions(settings, limit=limit, before=before)
    if as_json:
        print(json.dumps(result))  # noqa: T201 -- the command's answer
        return 0 if result["ok"] else 1
    if not result["ok"]:
        print(f"not read: {result['error']}")  # noqa: T201 -- as above
        return 1
    console = Console()
    if console.is_terminal:
        console.print(*_on_terminal(result), sep="\n")
    else:
        print("\n".join(plain_lines(result)))  # noqa: T201 -- as above
    return 0


def _on_terminal(result: dict[str, Any]) -> list[Any]:
    rows = [_row(action) for action in result["actions"]]
    if not rows:
        return [Text(NOTHING)]
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*map(plain, row))
    return [table, *map(plain, _more(result))]


def plain_lines(result: dict[str, Any]) -> list[str]:
    """One line for each action, its cells divided by tabs: a tab within a cell is written as an escape."""
    rows = ["\t".join(plain(cell).plain for cell in _row(action)) for action in result["actions"]]
    return [*(rows or [NOTHING]), *_more(result)]


def _more(result: dict[str, Any]) -> list[str]:
    return [f"more: stockgate actions --before {result['next_before']}"] if result["next_before"] else []


def _row(action: dict[str, Any]) -> list[str]:
    what = action["action"] + (" (dry run)" if action["dry_run"] else "")
    if action["reconcile_task"]:
        what += f", task {action['reconcile_task']}"
    why = action["reason"] + (f" (approval {action['approval_no']})" if action["approval_no"] else "")
    outcome = action["outcome"] + (f": {action['detail']}" if action["detail"] else "")
    at = str(action["at"])[:19].replace("T", " ")
    who = action["actor"] or "-"
    return [at, who, what, action["target"], why or "-", outcome, action["before"], action["after"]]
