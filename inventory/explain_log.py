"""What a shard's Redis says in one epoch: where its log stands, and the changes in it that MySQL does not have yet."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from inventory.events import Change, Event, decode_changes
from inventory.explain_timeline import Step, log_step
from kernel import redis_keys
from kernel.errors import ScriptFailed
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys

ENTRIES_MAX: Final = 500
ENTRIES_PAGE: Final = 20
BYTES_MAX: Final = 8 * 1024 * 1024
CHANGES_MAX: Final = 100
"""An explanation reads no more of the log than this and says where it stopped; `/ops/status` has the whole distance."""


class LogView(msgspec.Struct, frozen=True):
    """Where the log of the epoch stands. `applied_m` is null where MySQL could not be asked."""

    head_m: int
    confirmed_m: int
    applied_m: int | None
    fenced: bool
    """Nobody decides: the epoch is closing, or not open yet."""


class InFlight(msgspec.Struct):
    """Changes in the log that MySQL does not have, the oldest first.

    `complete` is false where the reading was cut short, or where it is not known what MySQL has: then it holds what came
    last. `undecodable` counts entries that no reader understands.
    """

    changes: list[Step]
    entries_read: int
    complete: bool
    undecodable: int = 0


class HeadReading(NamedTuple):
    """The head's fields that explain something. Times are UTC epoch ms by Redis' clock."""

    m: int
    confirmed_m: int
    fenced: bool
    grace_until_ms: int
    now_ms: int


async def newest_epoch(redis: RedisDoor, shard: int) -> int:
    """The highest epoch that this Redis ever drew, 0 for none: what is left to go by where MySQL cannot be asked."""
    return _number(await redis.command("GET", redis_keys.register(shard)))


async def read_head(redis: RedisDoor, names: EpochKeys) -> HeadReading | None:
    """The head of the epoch; None without one. Raises what the door raises where Redis does not answer."""
    try:
        fields: list[Any] = await redis.command(
            "HMGET", names.head, "m", "confirmed_m", "fence", "opened_ms", "grace_ms", "digest"
        )
    except ScriptFailed:
        # Something else stands under its name: the scripts take that for no head at all.
        return None
    if fields[0] is None or fields[5] is None:
        return None
    m, confirmed_m, fence, opened_ms, grace_ms = (_number(field) for field in fields[:5])
    seconds, microseconds = await redis.command("TIME")
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    return HeadReading(m, confirmed_m, bool(fence), opened_ms + grace_ms, now_ms)


async def read_in_flight(
    redis: RedisDoor,
    names: EpochKeys,
    head: HeadReading,
    applied_m: int | None,
    wanted: Callable[[Change, Event], bool],
) -> InFlight:
    """The wanted events behind entry `applied_m`; without it those of the log's last entries. Raises as the door."""
    first_m = (head.m - ENTRIES_MAX if applied_m is None else applied_m) + 1
    found = InFlight([], 0, complete=applied_m is not None)
    next_m, size = max(1, first_m), 0
    while next_m <= head.m:
        if found.entries_read >= ENTRIES_MAX or size >= BYTES_MAX or len(found.changes) >= CHANGES_MAX:
            found.complete = False
            break
        page: list[Any] = await redis.command("XRANGE", names.log, f"{next_m}-0", "+", "COUNT", ENTRIES_PAGE)
        if not page:
            break
        for entry_id, flat in page:
            m = int(entry_id.partition(b"-")[0])
            payload = dict(zip(flat[::2], flat[1::2], strict=True)).get(b"e", b"")
            found.entries_read += 1
            # What is confirmed may have been trimmed before it was applied: then the queue alone has it.
            found.complete = found.complete and m == next_m
            size += len(payload)
            next_m = m + 1
            try:
                changes = decode_changes(payload)
            except msgspec.MsgspecError:
                found.undecodable += 1
                continue
            found.changes += [
                log_step(change, event, names.epoch, m, confirmed=m <= head.confirmed_m)
                for change in changes
                for event in change.events
                if wanted(change, event)
            ]
    if len(found.changes) > CHANGES_MAX:
        del found.changes[CHANGES_MAX:]
        found.complete = False
    return found


def _number(stored: bytes | None) -> int:
    """A stored number; 0 where it is absent or damaged, which the scripts take for no head at all."""
    return int(stored) if stored is not None and stored.isdigit() else 0
