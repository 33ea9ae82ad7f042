"""What an operator does about a held key: replay its parked events, or reject the first one.

Both lock the shard's row, take the parked events in the order in which they were accepted, and judge each one as the
persist worker does (`inventory.tables`). Replaying is for a cause that has been mended; rejecting gives one event up: it
becomes a ledger row without effect that names the order it hurts, and the shard is rebuilt, because Redis counted it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

import sql
from inventory.events import Change, Event
from inventory.ledger import lock_shard, read_touched, update_shard, write_tables
from inventory.moves import Move
from inventory.sequence import LockedShard
from inventory.tables import DRIFTED, HELD, Balance, Facts, Tables, touched
from kernel import limits
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.errors import StockgateError
from kernel.mysql_door import Database, Transaction

REPLAY_EVENTS_MAX: Final = 1_000
"""Parked events in one transaction; there may be many, and the worker waits for the shard's row meanwhile."""

_change_decoder = msgspec.msgpack.Decoder(Change)


class NotHeld(StockgateError):
    """The key is unknown, or nothing of it is parked: there is nothing to replay or reject."""


class ParkedEvent(NamedTuple):
    """One row of `inventory_parked_event` of a known key."""

    epoch: int
    m: int
    change_no: int
    seq: int
    tenant: str
    ref: str
    payload: bytes
    reason: str


class Image(NamedTuple):
    """A balance before or after a repair. `held` has the bits of `inventory.tables`."""

    available: int
    reserved: int
    sold: int
    consumed: int
    locked: int
    seq: int
    version: int
    held: int


@dataclass(slots=True)
class HeldRepair:
    """What a replay or a rejection came to, or with `dry_run` would come to."""

    inventory_key: str
    dry_run: bool
    before: Image
    after: Image
    applied: int = 0
    """Events that had their effect."""
    rejected: int = 0
    hurt: tuple[tuple[str, str], ...] = ()
    """Tenant and order (or request number) of what was rejected."""
    left: int = 0
    """Parked events that remain, as far as was looked: at most one more than one transaction takes. 0 = the key is free."""
    stopped_by: str = ""
    """Why the first of those that remain cannot be applied."""


@dataclass(slots=True)
class Decision:
    """Pure result of `decide`: how many of the parked events are done, and why the next one is not."""

    done: int = 0
    applied: int = 0
    rejected: int = 0
    hurt: tuple[tuple[str, str], ...] = ()
    stopped_by: str = ""


def decide(
    tables: Tables, balance: Balance, key: str, parked: Sequence[ParkedEvent], reject_reason: str | None
) -> Decision:
    """Take parked events up in order until one has a fault. With `reject_reason` the first one is given up. Pure."""
    decision = Decision()
    for number, row in enumerate(parked):
        change, fault = _read(row)
        if number == 0 and reject_reason is not None:
            change = change or _unreadable(key, row, balance)
            for event in change.events:
                tables.reject(change, event, balance, row.epoch, row.m, reject_reason)
            decision.rejected += 1
            decision.hurt = ((row.tenant, row.ref),)
        elif change is None:
            decision.stopped_by = fault
            return decision
        else:
            fault = _fault(tables, balance, change)
            if fault:
                decision.stopped_by = fault
                return decision
            tables.accept(change, change.events[0], balance, row.epoch, row.m)
            decision.applied += 1
        decision.done += 1
    return decision


def _fault(tables: Tables, balance: Balance, change: Change) -> str:
    # A change has one event for each of its keys; two of one key could be applied in part.
    if len(change.events) != 1:
        return f"{len(change.events)} events of one key in one change"
    return tables.fault(change, change.events[0], balance)


def _read(row: ParkedEvent) -> tuple[Change | None, str]:
    try:
        return _change_decoder.decode(row.payload), ""
    except msgspec.MsgspecError as error:
        return None, f"the change cannot be decoded: {error}"


def _unreadable(key: str, row: ParkedEvent, balance: Balance) -> Change:
    """A stand-in for a change of which only key and order are known."""
    event = Event(key, balance.seq + 1, balance.version, 0, 0, 0, 0, 0, 0, 0, 0, *balance.quantities)
    return Change(Move.READ, row.tenant, row.ref, balance.updated_ms, "", "", "", "", 0, "", 0, 0, 0, [event])


async def replay_held(
    database: Database,
    inventory_key: str,
    reason: str,
    actor: str,
    *,
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> HeldRepair:
    """Apply the key's parked events in order, and let the key go when none is left.

    Works through them in transactions of at most `REPLAY_EVENTS_MAX`; stops at the first that still has a fault, and says
    it. Raises NotHeld, and what the door raises: what was committed by then stays, and calling again goes on.
    """
    total: HeldRepair | None = None
    while True:
        part = await _repair(database, inventory_key, reason, actor, clock, dry_run=dry_run, reject=False)
        if total is not None:
            part = HeldRepair(
                inventory_key,
                dry_run,
                total.before,
                part.after,
                total.applied + part.applied,
                left=part.left,
                stopped_by=part.stopped_by,
            )
        total = part
        if dry_run or part.stopped_by or not part.left:
            return total


async def reject_held(
    database: Database,
    inventory_key: str,
    reason: str,
    actor: str,
    *,
    dry_run: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> HeldRepair:
    """Give the key's first parked event up, apply those behind it, and ask for the shard to be rebuilt.

    The later ones count by their deltas: Redis computed their after-images with the rejected one. If one of them cannot
    be applied the key stays held, and that one can be rejected next. Until the epoch is closed the key is not sold: its
    quantities in Redis are wrong. Raises NotHeld, and what the door raises.
    """
    repair = await _repair(database, inventory_key, reason, actor, clock, dry_run=dry_run, reject=True)
    if dry_run or repair.stopped_by or not repair.left:
        return repair
    rest = await replay_held(database, inventory_key, reason, actor, clock=clock)
    return HeldRepair(
        inventory_key,
        dry_run,
        repair.before,
        rest.after,
        repair.applied + rest.applied,
        repair.rejected,
        repair.hurt,
        rest.left,
        rest.stopped_by,
    )


class _UndoDryRun(Exception):
    """Ends a dry run: everything is rolled back."""


async def _repair(
    database: Database, key: str, reason: str, actor: str, clock: Clock, *, dry_run: bool, reject: bool
) -> HeldRepair:
    """One transaction: lock, read, decide, write, leave a trace."""
    rows = await database.fetch_all(sql.load("select_balance_to_repair"), (key,))
    if not rows:
        raise NotHeld(f"{key} has no balance")
    shard_no: int = rows[0][0]
    result: list[HeldRepair] = []
    with suppress(_UndoDryRun):
        async with database.transaction() as transaction:
            shard = await lock_shard(transaction, shard_no)
            repair = await _repair_locked(transaction, shard, key, reason, actor, clock.now_ms(), reject=reject)
            repair.dry_run = dry_run
            result.append(repair)
            if dry_run:
                raise _UndoDryRun
    return result[0]


async def _repair_locked(
    transaction: Transaction, shard: LockedShard, key: str, reason: str, actor: str, now_ms: int, *, reject: bool
) -> HeldRepair:
    rows = await transaction.fetch_all(sql.load("select_parked_events"), (key, REPLAY_EVENTS_MAX + 1))
    parked = [ParkedEvent(*row) for row in rows]
    chunk = parked[:REPLAY_EVENTS_MAX]
    facts = await _facts(transaction, key, chunk)
    tables = Tables(shard.shard_no, facts)
    balance = tables.balance(key)
    if balance is None or not balance.held & HELD or not parked:
        raise NotHeld(f"{key} is not held")
    before = Image(*balance.quantities, balance.seq, balance.version, balance.held)
    decision = decide(tables, balance, key, chunk, reason[: limits.REASON_CHARS_MAX] if reject else None)
    left = len(parked) - decision.done
    if reject and shard.mode == "hot":
        shard = shard._replace(
            rebuild_wanted=shard.rebuild_wanted + 1,
            rebuild_reason=f"rejected an event of {key}: {reason}"[: limits.REASON_CHARS_MAX],
        )
    if not left:
        shard = shard._replace(held_version=shard.held_version + 1)
        balance.held = _held_afterwards(balance.held, shard, chunk[-1].epoch)
    balance.changed = True
    await write_tables(transaction, tables)
    if decision.done:
        last = chunk[decision.done - 1]
        await transaction.execute(
            sql.load("delete_parked_events"), (key, last.epoch, last.epoch, last.m, last.m, last.change_no)
        )
    await update_shard(transaction, shard)
    after = Image(*balance.quantities, balance.seq, balance.version, balance.held)
    await _leave_trace(transaction, shard, key, before, after, decision, reason, actor, now_ms, reject=reject)
    return HeldRepair(
        key, False, before, after, decision.applied, decision.rejected, decision.hurt, left, decision.stopped_by
    )


def _held_afterwards(held: int, shard: LockedShard, epoch: int) -> int:
    """A drifted key waits for the end of the epoch in which Redis counted what was rejected; any other is free."""
    return DRIFTED if held & DRIFTED and shard.mode == "hot" and shard.epoch == epoch else 0


async def _facts(transaction: Transaction, key: str, parked: Sequence[ParkedEvent]) -> Facts:
    changes = [change for change, _ in map(_read, parked) if change is not None]
    names = touched(changes)
    names.keys = {key}
    return await read_touched(transaction, names)


async def _leave_trace(
    transaction: Transaction,
    shard: LockedShard,
    key: str,
    before: Image,
    after: Image,
    decision: Decision,
    reason: str,
    actor: str,
    now_ms: int,
    *,
    reject: bool,
) -> None:
    await transaction.execute(
        sql.load("record_repair"),
        (
            shard.shard_no,
            "reject_held" if reject else "replay_held",
            key,
            "held",
            "stopped" if decision.stopped_by else "done",
            shard.epoch,
            after.seq,
            _image_text(before, hurt=decision.hurt),
            _image_text(after, stopped_by=decision.stopped_by[:100]),
            reason[: limits.REASON_CHARS_MAX],
            actor,
            now_ms,
            now_ms,
        ),
    )


def _image_text(image: Image, **more: Any) -> str:
    return msgspec.json.encode({**image._asdict(), **{name: value for name, value in more.items() if value}}).decode()
