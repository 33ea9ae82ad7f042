"""`stockgate audit`: every invariant over everything in both stores, with a line that moves while it looks."""

import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from inventory.audit import Check
from kernel.settings import Settings
from reconciler.commands import audit
from stockgate.addresses import require_addresses
from stockgate.sections import Section, show

VIOLATIONS_SHOWN: Final = 20
"""Of each check, to people. `--json` has all that were found."""


def run(settings: Settings, *, run_dir: Path, as_json: bool) -> int:
    """Audit and print; the exit code is 0 only if every invariant holds. Raises StackError where no server is named."""
    require_addresses(settings, run_dir)
    with _progress() as told:
        result = audit(settings, told)
    if as_json:
        print(json.dumps(result))  # noqa: T201 -- the command's answer
    else:
        show(sections(result))
    return 0 if result["ok"] else 1


@contextmanager
def _progress() -> Generator[Callable[[Check], None]]:
    """Show on the terminal, if there is one, what is looked at; nothing of it stays, and nothing reaches a pipe."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("looking", total=None)

        def told(check: Check) -> None:
            progress.update(task, description=f"{check.name}: {check.checked} looked at")

        yield told


def sections(result: dict[str, Any]) -> list[Section]:
    """The result for people."""
    if "checks" not in result:
        return [Section("not audited", [result["error"], "an audit that could not look proves nothing"], style="red")]
    checks: list[dict[str, Any]] = result["checks"]
    rows = [
        ["ok" if check["ok"] else "VIOLATED", check["name"], check["checked"], len(check["violations"])]
        for check in checks
    ]
    broken = [
        Section(
            f"{check['name']} is violated",
            [json.dumps(violation) for violation in check["violations"][:VIOLATIONS_SHOWN]]
            + _more(len(check["violations"]) - VIOLATIONS_SHOWN),
            style="red",
        )
        for check in checks
        if not check["ok"]
    ]
    verdict = Section("every invariant holds", style="green") if result["ok"] else _what_to_do()
    return [Section("invariants", columns=("", "invariant", "looked at", "violations"), rows=rows), *broken, verdict]


def _more(count: int) -> list[str]:
    return [f"and {count} more: `stockgate audit --json` has them"] if count > 0 else []


def _what_to_do() -> Section:
    return Section(
        "invariants are violated",
        [
            "`stockgate explain KEY` says what a key's history is and what to do about it",
            "`stockgate reconcile --reason …` corrects what Redis has wrong; MySQL is never changed by it",
        ],
        style="red",
    )
