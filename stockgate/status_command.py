"""`stockgate status`: how everything stands, asked of the stores themselves, so that it works where no gateway does."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from inventory.shard_reply import ShardReply, shard_reply
from inventory.status import Overview
from kernel.clock import SYSTEM_CLOCK
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from stockgate.addresses import address, require_addresses
from stockgate.sections import Section, show

NAME: Final = "status"
SHARD: Final = 0
"""The only shard, until orders over several shards are built."""
COMPARED_LATE_S: Final = 60.0
"""The reconciler compares every few seconds: much longer ago means that none runs."""


def run(settings: Settings, *, run_dir: Path, as_json: bool) -> int:
    """Ask and print; the exit code is 0 only if all is well. Raises StackError where no server is named."""
    require_addresses(settings, run_dir)
    result = summary(asyncio.run(ask(settings)), settings, SYSTEM_CLOCK.now_ms())
    if as_json:
        print(json.dumps(result))  # noqa: T201 -- the command's answer
    else:
        show(sections(result))
    return 0 if result["ok"] else 1


async def ask(settings: Settings) -> ShardReply:
    """The shard as the stores show it now; what could not be asked is named in it."""
    database = await Database.open(settings, name=NAME, pool_max=1)
    redis = RedisDoor.open(settings, name=NAME)
    try:
        return shard_reply(SHARD, await Overview(settings, database, redis, SHARD).status(), leads=False)
    finally:
        await redis.close()
        await database.close()


def summary(shard: ShardReply, settings: Settings, now_ms: int) -> dict[str, Any]:
    """The result for programs: as `GET /ops/status`, with `ok` and in `troubles` what is not well, in sentences."""
    troubles = [*_troubles(shard, settings, now_ms)]
    return {
        "ok": not troubles,
        "troubles": troubles,
        "gateways": shard.gateways,
        "shards": [msgspec.to_builtins(shard)],
        "drift_found": shard.drift_found or 0,
        "drift_repaired": shard.drift_repaired or 0,
    }


def _troubles(shard: ShardReply, settings: Settings, now_ms: int) -> Iterator[str]:
    for store in shard.missing:
        yield f"{store} does not answer at {address(settings, store)}: `stockgate doctor` says more"
    if shard.mode == "db":
        yield f"shard {shard.shard} is in db mode: MySQL decides, slower than Redis; `stockgate mode hot --reason …` ends it"
    elif shard.mode is not None and shard.mode != "hot":
        yield f"shard {shard.shard} is {shard.mode}: nobody decides, callers hear SHARD_CLOSED"
    if shard.mode == "hot" and shard.log_head_m is None and "redis" not in shard.missing:
        yield f"shard {shard.shard} is hot and Redis has no head of epoch {shard.epoch}: its leader has to rebuild it"
    if shard.fenced:
        yield f"the log of epoch {shard.epoch} is fenced: it is about to be closed"
    if shard.alarm:
        yield f"alarm {shard.alarm}: {shard.alarm_detail}"
    if shard.rebuild_wanted:
        yield f"a rebuild of shard {shard.shard} is wanted and not done yet"
    if shard.gateways == 0:
        yield "no gateway listens"
    if shard.leader.present is False:
        yield f"nobody leads shard {shard.shard}: what is decided is not confirmed, and callers wait in vain"
    if shard.worker_attached is False:
        yield "no persist worker is attached to the queue: nothing reaches MySQL"
    if shard.persist_lag_seconds is not None and shard.persist_lag_seconds > settings.in_flight_alarm_s:
        yield f"MySQL is {shard.persist_lag_seconds:.1f} s behind, {shard.persist_lag_entries} entries"
    if shard.held_keys:
        yield f"{shard.held_keys} keys are held: an event of each could not be applied; `stockgate explain KEY`"
    yield from _comparison_troubles(shard, now_ms)


def _comparison_troubles(shard: ShardReply, now_ms: int) -> Iterator[str]:
    if shard.keys is None:
        if "mysql" not in shard.missing:
            yield "the stores were never compared: does a reconciler run?"
        return
    late_s = (now_ms - shard.keys.compared_ms) / 1000
    if late_s > COMPARED_LATE_S:
        yield f"the stores were compared {late_s:.0f} s ago: does a reconciler run?"
    for count, what in ((shard.keys.stuck, "do not reach MySQL"), (shard.keys.lost, "are lost in Redis")):
        if count:
            yield f"{count} keys {what}: {shard.keys.detail or '`stockgate reconcile --dry-run` names them'}"


def sections(result: dict[str, Any]) -> list[Section]:
    """The result for people."""
    troubles: list[str] = result["troubles"]
    verdict = Section("not well", troubles, style="red") if troubles else Section("all is well", style="green")
    return [*(_shard(shard, result["gateways"]) for shard in result["shards"]), verdict]


def _shard(shard: dict[str, Any], gateways: int | None) -> Section:
    since = shard["since_ms"] and datetime.fromtimestamp(shard["since_ms"] / 1000, UTC).strftime(
        "%Y-%m-%d %H:%M:%S UTC"
    )
    rows: list[tuple[str, object]] = [
        ("mode", shard["mode"] and f"{shard['mode']}, since {since}"),
        ("epoch", shard["epoch"]),
        ("gateways", gateways),
        ("leader", _leader(shard["leader"])),
        ("entries decided (log head)", shard["log_head_m"]),
        ("entries confirmed", shard["confirmed_m"]),
        ("entries applied", shard["applied_m"]),
        ("behind in MySQL", _lag(shard)),
        ("queue depth", shard["queue_depth"]),
        ("persist worker", {True: "attached", False: "NOT attached", None: None}[shard["worker_attached"]]),
        ("held keys", shard["held_keys"]),
        ("parked events", shard["parked_events"]),
        ("stale entries", shard["stale_entries"]),
        ("drift found, repaired", _drift(shard)),
        ("keys", _keys(shard["keys"])),
    ]
    return Section(f"shard {shard['shard']}", columns=("", "now"), rows=rows)


def _leader(leader: dict[str, Any]) -> str | None:
    present = {True: "present", False: "NONE", None: "not asked"}[leader["present"]]
    return None if leader["term"] is None else f"{present}, term {leader['term']}"


def _lag(shard: dict[str, Any]) -> str | None:
    if shard["persist_lag_entries"] is None:
        return None
    return f"{shard['persist_lag_entries']} entries, {shard['persist_lag_seconds']:.1f} s"


def _drift(shard: dict[str, Any]) -> str | None:
    return None if shard["drift_found"] is None else f"{shard['drift_found']}, {shard['drift_repaired']}"


def _keys(keys: dict[str, Any] | None) -> str | None:
    if keys is None:
        return None
    classes = ("healthy", "in_flight", "cold", "drifted", "lost", "stuck")
    return ", ".join(f"{keys[name]} {name.replace('_', ' ')}" for name in classes)
