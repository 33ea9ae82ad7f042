"""`stockgate mode`: who decides, and switches between Redis and MySQL; asked of MySQL itself, so it works without a gateway."""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from inventory.mode_switch import (
    AlreadyThere,
    SwitchRefused,
    SwitchRunning,
    ToMode,
    TooLate,
    abort_switch,
    read_switch,
    request_switch,
)
from inventory.operator_actions import Action, BadReason
from inventory.shard_state import read_shard
from kernel.errors import StockgateError
from kernel.mysql_door import Database
from kernel.settings import Settings
from reconciler.commands import actor
from stockgate.addresses import require_addresses
from stockgate.sections import Section, show

NAME: Final = "mode"
SHARD: Final = 0
"""The only shard, until orders over several shards are built."""
LOOK_S: Final = 0.1

Result = dict[str, Any]
Say = Callable[[str], None]


def run(
    settings: Settings,
    *,
    run_dir: Path,
    to_mode: str | None,
    reason: str,
    abort: bool,
    dry_run: bool,
    wait_s: float,
    as_json: bool,
) -> int:
    """Show, switch or abort; the exit code is 0 only if what was asked for is so. Raises StackError without addresses."""
    require_addresses(settings, run_dir)
    say: Say = (lambda _: None) if as_json else _say
    result = asyncio.run(_carry_out(settings, to_mode, reason, say, abort=abort, dry_run=dry_run, wait_s=wait_s))
    if as_json:
        print(json.dumps(result))  # noqa: T201 -- the command's answer
    else:
        show(_sections(result))
    return 0 if result["ok"] else 1


def _say(text: str) -> None:
    """Progress for people; the answer goes to the standard output."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201 -- as above


async def _carry_out(
    settings: Settings, to_mode: str | None, reason: str, say: Say, *, abort: bool, dry_run: bool, wait_s: float
) -> Result:
    if to_mode not in {None, "hot", "db"}:
        return {"ok": False, "error": f"unknown mode {to_mode!r}: use hot or db"}
    if abort and to_mode:
        return {"ok": False, "error": "either a mode to switch to, or --abort"}
    database = await Database.open(settings, name=NAME, pool_max=1)
    try:
        refused = ""
        if abort or to_mode:
            name = "abort_switch" if abort else f"switch_to_{to_mode}"
            action = Action(actor(), name, f"shard {SHARD}", reason, dry_run)
            try:
                refused = await _act(database, cast("ToMode | None", to_mode), action, say, wait_s)
            except BadReason as wrong:
                refused = f"{wrong}: use --reason"
        shown = await _read(database)
        ok = not refused and (dry_run or to_mode is None or shown["mode"] == to_mode or wait_s <= 0)
        if not ok and not refused:
            refused = f"not {to_mode} within {wait_s:g} s; it goes on by itself: `stockgate mode` shows its steps"
        return {"ok": ok, **shown, **({"error": refused} if refused else {})}
    except StockgateError as failure:
        return {"ok": False, "error": f"MySQL cannot be asked: {failure}"}
    finally:
        await database.close()


async def _act(database: Database, to_mode: ToMode | None, action: Action, say: Say, wait_s: float) -> str:
    """Abort or switch, and wait for the end of it; why it was refused, or the empty string."""
    try:
        if to_mode is None:
            say(f"switch {await abort_switch(database, SHARD, action)} is given up")
            return ""
        number = await request_switch(database, SHARD, to_mode, action)
    except AlreadyThere:
        return ""
    except (SwitchRunning, TooLate) as refused:
        return f"{refused}: `stockgate mode` shows its steps"
    except SwitchRefused as refused:
        return str(refused)
    if not action.dry_run:
        await _follow(database, number, say, wait_s)
    return ""


async def _follow(database: Database, number: int, say: Say, wait_s: float) -> None:
    """Tell of each step as it is reached, until the switch has ended or the time is over."""
    told, waits_for = 0, ""
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        switch = await read_switch(database, SHARD, number)
        if switch is None:
            return
        for step in switch.steps[told:]:
            say(f"{step.at:%H:%M:%S}.{step.at.microsecond // 1000:03d} {step.step}")
        told = len(switch.steps)
        if switch.detail and switch.detail != waits_for:
            waits_for = switch.detail
            say(f"  {waits_for}")
        if switch.status != "RUNNING":
            return
        await asyncio.sleep(LOOK_S)


async def _read(database: Database) -> Result:
    row = await read_shard(database, SHARD)
    newest = await read_switch(database, SHARD)
    switch: Result | None = None if newest is None else msgspec.to_builtins(newest)
    runs = newest is not None and newest.status == "RUNNING"
    return {
        "shard": SHARD,
        "mode": row.mode,
        "epoch": row.epoch,
        "since_ms": row.since_ms,
        "switch": switch if runs else None,
        "last_switch": None if runs else switch,
    }


def _sections(result: Result) -> list[Section]:
    """The result for people."""
    found: list[Section] = []
    if "mode" in result:
        who = {"hot": "Redis decides", "db": "MySQL decides"}.get(result["mode"], "nobody decides for the moment")
        found.append(Section(f"shard {result['shard']} is {result['mode']}, epoch {result['epoch']}: {who}"))
        found += [_switch_section(result[name]) for name in ("switch", "last_switch") if result[name]]
    if "error" in result:
        found.append(Section("not done", [result["error"]], style="red"))
    return found


def _switch_section(switch: Result) -> Section:
    rows = [(step["step"], str(step["at"])[:23].replace("T", " ")) for step in switch["steps"]]
    title = f"switch {switch['id']} to {switch['to_mode']}: {switch['status']}, by {switch['requested_by']}: {switch['reason']}"
    return Section(title, [switch["detail"]] if switch["detail"] else [], ("step", "at (UTC)"), rows)
