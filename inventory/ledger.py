"""The persist worker's side of MySQL: one transaction reads what a batch rests on, plans it, and writes the plan.

The shard row is locked first and until COMMIT, so that two workers, an operator and a leader's compare-and-set come one
after the other, and everything else can be read without locks. Rows are written in primary-key order.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

import msgspec

import sql
from inventory.events import Change
from inventory.plan import EventName, Plan, plan
from inventory.sequence import (
    Arrangement,
    BrokenChange,
    GapMemory,
    Incoming,
    LockedShard,
    StaleEntry,
    Stop,
    Taken,
    arrange,
)
from inventory.tables import BalanceRow, Facts, LineRow, OrderName, OrderRow, Tables, Touched, touched
from kernel.clock import Clock
from kernel.errors import Retryable, StatementError, StockgateError
from kernel.failpoints import hit
from kernel.mysql_door import Database, Transaction

LIST_MAX: Final = 900
"""Names in one `IN`: MariaDB turns longer lists into a subquery."""

DRIVER_REFUSALS: Final = (ValueError, OverflowError, struct.error)
"""What the driver raises, before anything is sent, for a value that no column could hold."""

_T = TypeVar("_T")

_LOCK_SHARD: Final = sql.load("lock_shard")
_SELECT_BALANCES: Final = sql.load("select_balances_to_apply")
_SELECT_ORDERS: Final = sql.load("select_orders_to_apply")
_SELECT_LINES: Final = sql.load("select_lines_to_apply")
_SELECT_REQUESTS: Final = sql.load("select_requests_to_apply")
_COUNT_PARKED: Final = sql.load("count_parked_events")
_SELECT_LISTED: Final = sql.load("select_listed_stale_events")
_SELECT_APPLIED_ENTRY: Final = sql.load("select_applied_entry")
_SELECT_PARKED_ENTRY: Final = sql.load("select_parked_entry")
_INSERT_LEDGER: Final = sql.load("insert_ledger")
_UPSERT_ORDER: Final = sql.load("upsert_order")
_UPSERT_LINE: Final = sql.load("upsert_line")
_INSERT_REQUEST: Final = sql.load("insert_request")
_UPSERT_BALANCE: Final = sql.load("upsert_balance")
_INSERT_PARKED: Final = sql.load("insert_parked_event")
_INSERT_STALE: Final = sql.load("insert_stale_event")
_RELEASE_DRIFTED: Final = sql.load("update_drifted_keys_released")
_UPDATE_SHARD: Final = sql.load("update_shard_applied")


class NoShardRow(StockgateError):
    """The database has no row for the shard: it was not migrated, or it is another system's."""


class DataRefused(StockgateError):
    """The server refuses what a batch writes, and no single event is to blame: `cause` says what it said."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"the batch is refused: {cause}")
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages to apply together: what is held from before first, then as delivered; and what is known about them."""

    shard: int
    incoming: Sequence[Incoming]
    memory: GapMemory
    proven: Mapping[EventName, str]
    """Events that the server has refused in an earlier attempt."""
    stop: Stop | None = None


async def apply_batch(database: Database, batch: Batch, clock: Clock) -> Plan:
    """Apply a batch in one transaction and return what was done; on return it is committed.

    Raises Retryable, or StoreUnavailable, and then the whole batch is to be given again: `unknown` means that it may be
    applied, which the next attempt finds. Raises StatementError where the server refuses rows (see `find_refused`).
    """
    async with database.transaction() as transaction:
        planned = await _plan_batch(transaction, batch, clock)
        await write_plan(transaction, planned, clock)
        hit("worker.before_commit")
    hit("worker.after_commit")
    return planned


async def find_refused(database: Database, batch: Batch, clock: Clock) -> tuple[EventName, str]:
    """The first event of a batch whose rows the server refuses, found by trial, and what it says.

    Nothing is kept of the trials. Raises DataRefused where all events can be written, and as `apply_batch` otherwise.
    """
    whole = await _try(database, batch, clock, None)
    if whole.refusal is None:
        raise DataRefused(RuntimeError("every event can be written, the rest of the batch cannot"))
    low, high, refusal = 0, len(whole.names), whole.refusal
    # The first `low` events can be written, the first `high` cannot.
    while high - low > 1:
        middle = (low + high) // 2
        trial = await _try(database, batch, clock, middle)
        if trial.applied_m != whole.applied_m:
            raise Retryable(0, "another worker has moved the log on during the trials")
        if trial.refusal is None:
            low = middle
        else:
            high, refusal = middle, trial.refusal
    return whole.names[high - 1], f"refused by the database: {refusal}"


class _UndoTrial(Exception):
    """Ends a trial: everything is rolled back."""


@dataclass(slots=True)
class _Trial:
    applied_m: int
    names: list[EventName]
    refusal: Exception | None = None


async def _try(database: Database, batch: Batch, clock: Clock, events: int | None) -> _Trial:
    """Write the first `events` events of the batch (None: all), note what the server says, and undo it."""
    trial = _Trial(0, [])
    with suppress(_UndoTrial):
        async with database.transaction() as transaction:
            row = await lock_shard(transaction, batch.shard)
            arrangement = arrange(row, batch.incoming, batch.memory, clock.now_ms(), batch.stop)
            trial.applied_m, trial.names = row.applied_m, list(_event_names(arrangement.taken))
            if events is not None:
                arrangement.taken = list(_first_events(arrangement.taken, events))
            facts = await read_facts(transaction, arrangement)
            try:
                planned = plan(row, arrangement, facts, clock.now_ms(), batch.proven)
                await write_tables(transaction, planned.tables)
            except Retryable:
                raise
            except (StatementError, *DRIVER_REFUSALS) as refusal:
                trial.refusal = refusal
            raise _UndoTrial
    return trial


async def _plan_batch(transaction: Transaction, batch: Batch, clock: Clock) -> Plan:
    row = await lock_shard(transaction, batch.shard)
    now_ms = clock.now_ms()
    arrangement = arrange(row, batch.incoming, batch.memory, now_ms, batch.stop)
    facts = await read_facts(transaction, arrangement)
    planned = plan(row, arrangement, facts, now_ms, batch.proven)
    if planned.stop is not None:
        arrangement = arrange(row, batch.incoming, batch.memory, now_ms, planned.stop)
        planned = plan(row, arrangement, facts, now_ms, batch.proven)
    return planned


async def lock_shard(transaction: Transaction, shard: int) -> LockedShard:
    """Lock the shard's row until the transaction ends; raises NoShardRow."""
    row = await transaction.fetch_one(_LOCK_SHARD, (shard,))
    if row is None:
        raise NoShardRow(f"no row for shard {shard}: run `stockgate migrate`")
    return LockedShard(*row)


async def read_facts(transaction: Transaction, arrangement: Arrangement) -> Facts:
    """Read what the taken entries and the stale ones rest on; the shard's row is locked."""
    names = touched(change for taken in arrangement.taken for change in taken.changes)
    facts = await read_touched(transaction, names)
    if any(balance.held for balance in facts.balances.values()):
        rows = await transaction.fetch_all(_COUNT_PARKED, (arrangement.shard.shard_no,))
        facts.parked = rows[0][0]
    if arrangement.stale:
        await _read_stale(transaction, arrangement.shard.shard_no, arrangement.stale, facts)
    return facts


async def read_touched(transaction: Transaction, names: Touched) -> Facts:
    """Read the rows with these names; the shard's row is locked."""
    facts = Facts()
    for keys in _chunks(sorted(names.keys)):
        for key, *values in await transaction.fetch_all(_SELECT_BALANCES, (keys,)):
            facts.balances[key] = BalanceRow(*values)
    for tenant, order_ids in _by_tenant(names.orders):
        for ids in _chunks(order_ids):
            headers = await transaction.fetch_all(_SELECT_ORDERS, (tenant, ids))
            for _, order_id, *values in headers:
                facts.orders[tenant, order_id] = OrderRow(*values)
            # An order without a header has no lines: most of a batch's orders are new.
            if known := tuple(header[1] for header in headers):
                for _, order_id, position, *values in await transaction.fetch_all(_SELECT_LINES, (tenant, known)):
                    facts.lines[tenant, order_id, position] = LineRow(*values)
    for tenant, request_nos in _by_tenant(names.requests):
        for numbers in _chunks(request_nos):
            for _, number in await transaction.fetch_all(_SELECT_REQUESTS, (tenant, numbers)):
                facts.requests.add((tenant, number))
    return facts


async def write_plan(transaction: Transaction, planned: Plan, clock: Clock) -> None:
    """Write all that a plan says. Raises what the door raises; then nothing of it may be committed."""
    await write_tables(transaction, planned.tables)
    await transaction.execute_many(_INSERT_PARKED, planned.parked)
    now_ms = clock.now_ms()
    shard_no = planned.shard.shard_no
    await transaction.execute_many(
        _INSERT_STALE,
        [(shard_no, e.epoch, e.m, e.term, e.digest, e.payload, now_ms) for e in planned.stale],
    )
    shard = planned.shard
    if planned.closed and await transaction.execute(_RELEASE_DRIFTED, (shard_no,)):
        shard = shard._replace(held_version=shard.held_version + 1)
    await update_shard(transaction, shard)


async def write_tables(transaction: Transaction, tables: Tables) -> None:
    """Write what was applied in a working copy. Raises what the door raises; then nothing of it may be committed."""
    for statement, rows in (
        (_INSERT_LEDGER, tables.ledger_rows),
        (_UPSERT_ORDER, tables.order_rows),
        (_UPSERT_LINE, tables.line_rows),
        (_INSERT_REQUEST, tables.request_rows),
        (_UPSERT_BALANCE, tables.balance_rows),
    ):
        await transaction.execute_many(statement, rows)


async def update_shard(transaction: Transaction, shard: LockedShard) -> None:
    """Write the columns that the worker and the operator's repairs move; the row is locked."""
    await transaction.execute(
        _UPDATE_SHARD,
        (
            shard.mode,
            shard.epoch,
            shard.applied_term,
            shard.applied_m,
            shard.applied_digest,
            shard.applied_at_ms,
            shard.applied_event_ms,
            shard.wanted_m,
            shard.held_version,
            shard.rebuild_wanted,
            shard.rebuild_reason,
            shard.since_ms,
            shard.alarm,
            shard.alarm_detail,
            shard.shard_no,
        ),
    )


async def _read_stale(transaction: Transaction, shard: int, stale: Sequence[StaleEntry], facts: Facts) -> None:
    """Which stale entries are listed, and which had their effect before their epoch ended: redelivered, not late."""
    for entries in _chunks(stale):
        epochs = tuple({entry.epoch for entry in entries})
        numbers = tuple({entry.m for entry in entries})
        rows = await transaction.fetch_all(_SELECT_LISTED, (shard, epochs, numbers))
        facts.listed.update((epoch, m, digest) for epoch, m, digest in rows)
    for entry in stale:
        if (entry.epoch, entry.m, entry.digest) in facts.listed:
            continue
        for key, seq in entry.events:
            rows = await transaction.fetch_all(_SELECT_APPLIED_ENTRY, (key, seq))
            rows += await transaction.fetch_all(_SELECT_PARKED_ENTRY, (key, entry.epoch, entry.m))
            if (entry.epoch, entry.m) in rows:
                facts.applied.add((entry.epoch, entry.m))
                break


def _chunks(names: Sequence[_T]) -> Iterator[tuple[_T, ...]]:
    iterator = iter(names)
    while chunk := tuple(islice(iterator, LIST_MAX)):
        yield chunk


def _by_tenant(names: Iterable[OrderName]) -> Iterator[tuple[str, list[str]]]:
    tenants: defaultdict[str, list[str]] = defaultdict(list)
    for tenant, name in names:
        tenants[tenant].append(name)
    for tenant, refs in sorted(tenants.items()):
        yield tenant, sorted(refs)


def _event_names(taken: Iterable[Taken]) -> Iterator[EventName]:
    """The events of some entries in their order. A change that cannot be decoded writes nothing that can be refused."""
    for m, _, changes in taken:
        for change_no, change in enumerate(changes):
            if isinstance(change, Change):
                for event in change.events:
                    yield m, change_no, event.inventory_key


def _first_events(taken: Iterable[Taken], events: int) -> Iterator[Taken]:
    """The entries with their first `events` events in all."""
    left = events
    for m, digest, changes in taken:
        if left <= 0:
            return
        kept: list[Change | BrokenChange] = []
        for change in changes:
            if isinstance(change, Change):
                kept.append(msgspec.structs.replace(change, events=change.events[: max(0, left)]))
                left -= len(change.events)
            else:
                kept.append(change)
        yield Taken(m, digest, tuple(kept))
