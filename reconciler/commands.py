"""What the command line does in one go: compare, repair, audit. Each opens its own doors and closes them again."""

import asyncio
import os
import pwd
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any, Final

import msgspec

from inventory import held, operator_actions
from inventory.audit import Told, tell_nobody
from inventory.audit import audit as audit_shard
from inventory.compare import Findings, KeyClass
from inventory.observe import HeadMissing, read_keys
from inventory.operator_actions import Action, BadCursor, BadReason, Came
from inventory.shard_state import read_shard
from kernel.clock import SYSTEM_CLOCK
from kernel.errors import StockgateError
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys, shard_of
from kernel.settings import Settings
from reconciler.passes import Reconciler, ask_for_rebuild

KINDS: Final = ("correct", "rebuild_shard", "replay_held", "reject_held")
REBUILD_LIMIT_S: Final = 60.0
ACTOR_CHARS_MAX: Final = 64

Result = dict[str, Any]


def reconcile(settings: Settings, *, keys: Sequence[str], dry_run: bool, reason: str = "") -> Result:
    """Compare some keys, or all opened ones, and repair what is proven to be wrong. A dry run needs no reason."""
    target = keys[0] if len(keys) == 1 else f"{len(keys)} keys" if keys else "all shards"
    action = Action(actor(), "reconcile", target, reason, dry_run)

    async def work(database: Database, redis: RedisDoor) -> Result:
        shards: list[Result] = []
        for shard in range(settings.shards):
            reconciler = Reconciler(database, redis, shard, clock=SYSTEM_CLOCK, in_flight_alarm_s=float("inf"))
            findings = await reconciler.run(list(keys), dry_run=dry_run, requested_by=actor())
            shards.append({"shard": shard, **_shown(findings)})
        return {
            "ok": all(shard["open"] and not shard["found"] for shard in shards),
            "dry_run": dry_run,
            "shards": shards,
        }

    return _recorded(settings, action, work)


def repair(settings: Settings, *, kind: str, target: str, reason: str, dry_run: bool) -> Result:
    """One repair: `target` is an inventory key, for `rebuild_shard` a shard's number."""
    if kind not in KINDS:
        return {"ok": False, "error": f"unknown kind {kind!r}: use one of {', '.join(KINDS)}"}
    if not reason.strip():
        return {"ok": False, "error": "a repair needs a reason"}
    if not target.isascii():
        return {"ok": False, "error": f"{target!r} is no target: keys and shards are ASCII"}
    action = Action(actor(), kind, target, reason, dry_run)

    async def work(database: Database, redis: RedisDoor) -> Result:
        if kind == "rebuild_shard":
            return await _rebuild(settings, database, target, reason, dry_run=dry_run)
        if kind == "correct":
            return await _correct(settings, database, redis, target, dry_run=dry_run)
        act = held.replay_held if kind == "replay_held" else held.reject_held
        try:
            report = await act(database, target, reason, actor(), dry_run=dry_run)
        except held.NotHeld as refusal:
            return {"ok": False, "error": str(refusal)}
        return {"ok": not report.stopped_by, "kind": kind, **_plain(report)}

    return _recorded(settings, action, work)


def audit(settings: Settings, told: Told = tell_nobody) -> Result:
    """Every invariant over everything; `told` hears what is looked at."""

    async def work(database: Database, redis: RedisDoor) -> Result:
        checks = [
            check for shard in range(settings.shards) for check in await audit_shard(database, redis, shard, told)
        ]
        return {
            "ok": all(check.ok for check in checks),
            "checks": [{**asdict(check), "ok": check.ok} for check in checks],
        }

    return _with_stores(settings, work)


def actions(settings: Settings, *, limit: int, before: str) -> Result:
    """What operators did, the newest first: `next_before` is where the next page begins."""

    async def work(database: Database, _redis: RedisDoor) -> Result:
        page = await operator_actions.read_page(database, limit, before)
        return {"ok": True, **msgspec.to_builtins(page)}

    return _with_stores(settings, work)


def actor() -> str:
    """Who is at the command line, for the trace of a repair."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return f"cli:{name}".encode("ascii", "backslashreplace").decode()[:ACTOR_CHARS_MAX]


async def _correct(settings: Settings, database: Database, redis: RedisDoor, key: str, *, dry_run: bool) -> Result:
    shard = shard_of(key, settings.shards)
    row = await read_shard(database, shard)
    try:
        before = await read_keys(database, redis, EpochKeys(shard, row.epoch), [key])
    except HeadMissing as missing:
        return {"ok": False, "error": f"{missing}: nothing to correct until it is open"}
    if before[0].mysql is None:
        return {"ok": False, "error": f"{key} is unknown: MySQL has no balance of it"}
    reconciler = Reconciler(database, redis, shard, clock=SYSTEM_CLOCK, in_flight_alarm_s=float("inf"))
    findings = await reconciler.run([key], dry_run=dry_run, requested_by=actor())
    reading = before[0]
    return {
        "ok": findings is not None and (dry_run or not findings.found or findings.repaired > 0),
        "kind": "correct",
        "inventory_key": key,
        "dry_run": dry_run,
        "class": reading.key_class.value,
        "before": list(reading.redis.quantities) if reading.redis and reading.redis.quantities else None,
        "after": list(reading.mysql.quantities) if reading.mysql else None,
        "repaired": findings.repaired if findings else 0,
    }


async def _rebuild(settings: Settings, database: Database, target: str, reason: str, *, dry_run: bool) -> Result:
    if not target.isdigit() or int(target) >= settings.shards:
        return {"ok": False, "error": f"{target!r} is no shard: use a number from 0 to {settings.shards - 1}"}
    shard = int(target)
    row = await read_shard(database, shard)
    result: Result = {"kind": "rebuild_shard", "shard": shard, "dry_run": dry_run, "epoch": row.epoch}
    if dry_run:
        return {**result, "ok": row.mode == "hot", "mode": row.mode}
    asked = await ask_for_rebuild(database, shard, row.epoch, reason)
    deadline = time.monotonic() + REBUILD_LIMIT_S
    while time.monotonic() < deadline:
        now = await read_shard(database, shard)
        if now.mode == "hot" and now.epoch > row.epoch:
            return {**result, "ok": True, "asked": asked, "opened_epoch": now.epoch}
        await asyncio.sleep(0.2)
    return {
        **result,
        "ok": False,
        "asked": asked,
        "error": f"not open again within {REBUILD_LIMIT_S:.0f} s; it goes on by itself: look at /ops/status and the leader",
    }


def _shown(findings: Findings | None) -> Result:
    if findings is None:
        return {"open": False, "found": []}
    return {
        "open": True,
        "epoch": findings.epoch,
        **{key_class.value: findings.classes[key_class] for key_class in KeyClass},
        "repaired": findings.repaired,
        "found": [
            {
                "inventory_key": reading.inventory_key,
                "class": reading.key_class.value,
                "redis": list(reading.redis.quantities) if reading.redis and reading.redis.quantities else None,
                "mysql": list(reading.mysql.quantities) if reading.mysql else None,
            }
            for reading in findings.found
        ],
    }


def _recorded(settings: Settings, action: Action, work: Callable[[Database, RedisDoor], Awaitable[Result]]) -> Result:
    """Do what an operator asked for, with its row in the audit table: without the row nothing is done."""

    async def recorded(database: Database, redis: RedisDoor) -> Result:
        return await operator_actions.carry_out(database, action, lambda: work(database, redis), _came_of, SYSTEM_CLOCK)

    return _with_stores(settings, recorded)


def _came_of(result: Result) -> Came:
    """What a result is to the audit table. `reconcile` tells of findings, which are no failure of the comparison."""
    shards: list[Result] | None = result.get("shards")
    if shards is not None:
        counts = [{name: value for name, value in shard.items() if name != "found"} for shard in shards]
        is_open = all(shard["open"] for shard in shards)
        detail = "" if is_open else "a shard had no open epoch to compare"
        return Came("DONE" if is_open else "STOPPED", "", _text(counts), detail)
    detail = str(result.get("error") or result.get("stopped_by") or "")
    after = {name: value for name, value in result.items() if name not in _TOLD_ELSEWHERE}
    return Came("DONE" if result["ok"] else "STOPPED", _text(result.get("before")), _text(after), detail)


_TOLD_ELSEWHERE: Final = frozenset({"ok", "kind", "error", "stopped_by", "before", "inventory_key", "dry_run"})


def _text(value: Any) -> str:
    return "" if value is None else msgspec.json.encode(value).decode()


def _plain(report: held.HeldRepair) -> Result:
    """A repair's fields, the images by name too."""
    return {**asdict(report), "before": report.before._asdict(), "after": report.after._asdict()}


def _with_stores(settings: Settings, work: Callable[[Database, RedisDoor], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        database = await Database.open(settings, name="stockgate")
        redis = RedisDoor.open(settings, name="stockgate")
        try:
            return await work(database, redis)
        except (StockgateError, BadReason, BadCursor) as failure:
            return {"ok": False, "error": str(failure)}
        finally:
            await redis.close()
            await database.close()

    return asyncio.run(run())
