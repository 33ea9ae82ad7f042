"""The path on which MySQL decides: one transaction for many operations, with the answers that the scripts give.

The shard's row is locked in share mode until COMMIT, so that whoever ends db mode waits for every decision under way, and
sees all of them. Then the headers of the orders are locked in the order of their primary key, then the balances in
theirs: two transactions may wait for each other, but never crosswise. A row that does not exist cannot be locked: that an
order or a request number is new is decided by the unique key, when it is inserted. Whoever comes second begins again from
the start and finds it.
"""

import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple, TypeVar

import sql
from inventory.decide import Moment, Records, Request, WorkingCopy, keys_to_lock, within_bound
from inventory.hot_path import Called, Decision, Failure
from inventory.moves import REQUEST_MOVES
from inventory.operations import Operation, Result
from inventory.outcomes import CallStatus, Outcome
from inventory.shard_state import NoSuchShard
from inventory.tables import BalanceRow, Facts, LineRow, OrderName, OrderRow, Row, Tables
from kernel.errors import DuplicateKey, Retryable, StockgateError, StoreUnavailable
from kernel.failpoints import hit
from kernel.mysql_door import Database, Statement, Transaction
from kernel.settings import Settings

ATTEMPTS_MAX: Final = 4
"""Transactions that one call begins: the later ones find what another gateway wrote while the first was under way."""

LIST_MAX: Final = 900
"""Names in one `IN`: MariaDB turns longer lists into a subquery."""

_T = TypeVar("_T")

_SELECT_SHARD: Final = sql.load("select_shard_to_decide")
_SELECT_ORDERS: Final = sql.load("select_orders_to_decide")
_SELECT_LINES: Final = sql.load("select_lines_to_decide")
_SELECT_BALANCES: Final = sql.load("select_balances_to_decide")
_SELECT_REQUESTS: Final = sql.load("select_requests_to_decide")
_SELECT_PARKED: Final = sql.load("select_parked_refs")
_FIND_ORDERS: Final = sql.load("select_orders_to_apply")
_FIND_REQUESTS: Final = sql.load("select_requests_to_apply")
_INSERT_ORDER: Final = sql.load("insert_order")
_UPSERT_ORDER: Final = sql.load("upsert_order")
_INSERT_LINE: Final = sql.load("insert_line")
_UPSERT_LINE: Final = sql.load("upsert_line")
_INSERT_REQUEST: Final = sql.load("insert_request")
_INSERT_LEDGER: Final = sql.load("insert_ledger")
_UPSERT_BALANCE: Final = sql.load("upsert_balance")


class _Shard(NamedTuple):
    """The shard's row as `select_shard_to_decide` reads it. Times are UTC epoch ms by MySQL's clock."""

    mode: str
    epoch: int
    term: int
    since_ms: int
    now_ms: int
    any_parked: int


class _Overtaken(Exception):
    """Somebody wrote an order or request, while this transaction waited for balances, that it had read as unknown."""


class _Closed(Exception):
    """MySQL does not decide, or not for this leader: nothing was read beyond the shard's row."""

    def __init__(self, status: CallStatus, shard: _Shard) -> None:
        super().__init__(f"mode {shard.mode}, epoch {shard.epoch}, term {shard.term}")
        self.status = status
        self.shard = shard


class DbPath:
    """Decides by MySQL, for one shard. Calls may run side by side, as many as `database` has sessions."""

    def __init__(self, settings: Settings, database: Database, shard: int) -> None:
        self._database = database
        self._shard = shard
        self._grace_ms = settings.hold_grace_ms
        self._retry_s = settings.answer_deadline_ms / 1000

    async def call(self, ops: Sequence[Operation], *, term: int = 0) -> Called:
        """Decide in one transaction; never raises for a store's trouble, which becomes the decision of the operations.

        At most one call's worth of operations and lines (`limits.BATCH_…`). MySQL needs no
        proof of what it lacks. A leader names its `term`, and decides nothing once that is over. The answers hold as they
        are (`wait` 0): on return they are committed. Raises ValueError on a caller's bug.
        """
        give_up = time.monotonic() + self._retry_s
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                return await self._transact(ops, term)
            except _Closed as closed:
                return _closed(closed, ops)
            except StoreUnavailable as trouble:
                return _failed(ops, trouble.outcome, str(trouble))
            except (Retryable, DuplicateKey, _Overtaken) as collision:
                if attempt == ATTEMPTS_MAX or time.monotonic() > give_up:
                    return _failed(ops, "not_executed", f"others were quicker {attempt} times: {collision}")
            except (StockgateError, OverflowError, struct.error) as refused:
                # Rolled back: the server, or the driver before it, refuses what the rows would be.
                return _failed(ops, "not_executed", str(refused))
        raise AssertionError("unreachable: the last attempt returns")

    async def _transact(self, ops: Sequence[Operation], term: int) -> Called:
        wrote = False
        try:
            async with self._database.transaction() as transaction:
                shard = await self._lock_shard(transaction, term)
                batch = _Batch(transaction, self._shard, self._moment(shard))
                results = await batch.decide(ops, any_parked=bool(shard.any_parked))
                wrote = await batch.write()
                hit("decide.before_commit")
        except StoreUnavailable as trouble:
            if wrote or trouble.outcome == "not_executed":
                raise
            # Nothing was written, so that whatever became of COMMIT nothing has changed.
            raise StoreUnavailable("mysql", "not_executed", trouble.detail) from trouble
        hit("decide.after_commit")
        decisions: list[Decision] = [*results]
        return Called(CallStatus.DECIDED, shard.epoch, 0, "", 0, shard.now_ms, decisions)

    async def _lock_shard(self, transaction: Transaction, term: int) -> _Shard:
        row = await transaction.fetch_one(_SELECT_SHARD, (self._shard,))
        if row is None:
            raise NoSuchShard(f"no row for shard {self._shard}: run `stockgate migrate`")
        shard = _Shard(*row)
        if shard.mode != "db":
            raise _Closed(CallStatus.FENCED, shard)
        if term not in {0, shard.term}:
            raise _Closed(CallStatus.STALE_TERM, shard)
        return shard

    def _moment(self, shard: _Shard) -> Moment:
        return Moment(shard.epoch, shard.now_ms, shard.since_ms + self._grace_ms)


class _Batch:
    """One transaction's part behind the shard's row: read, decide, write."""

    def __init__(self, transaction: Transaction, shard_no: int, moment: Moment) -> None:
        self._transaction = transaction
        self._shard_no = shard_no
        self._moment = moment
        self._facts = Facts()
        self._records = Records()
        self._tables = Tables(shard_no, self._facts)

    async def decide(self, ops: Sequence[Operation], *, any_parked: bool) -> list[Result]:
        orders = {(op.tenant, op.ref) for op in ops if op.kind not in REQUEST_MOVES}
        requests = {(op.tenant, op.ref) for op in ops if op.kind in REQUEST_MOVES}
        await self._read_orders(orders)
        await self._read_requests(requests)
        if any_parked:
            await self._read_parked(orders | requests)
        taken = ops[: within_bound(self._facts, ops)]
        await self._read_lines((op.tenant, op.ref) for op in taken)
        keys = keys_to_lock(self._facts, self._records, self._moment, taken)
        await self._read_balances(keys)
        copy = WorkingCopy(self._shard_no, self._facts, self._records, self._moment)
        results = copy.decide(taken)
        self._tables = copy.tables
        if keys:
            await self._check_unknown(orders, requests)
        return results + [Result(Outcome.SKIPPED) for _ in ops[len(taken) :]]

    # --- read -----------------------------------------------------------------------------------------------------------

    async def _read_orders(self, names: Iterable[OrderName]) -> None:
        for tenant, order_ids in _lists(names):
            for _, order_id, *values in await self._transaction.fetch_all(_SELECT_ORDERS, (tenant, order_ids)):
                self._facts.orders[tenant, order_id] = OrderRow(*values)

    async def _read_lines(self, names: Iterable[OrderName]) -> None:
        known = {name for name in names if name in self._facts.orders}
        for tenant, order_ids in _lists(known):
            rows = await self._transaction.fetch_all(_SELECT_LINES, (tenant, order_ids))
            for _, order_id, position, *values in rows:
                self._facts.lines[tenant, order_id, position] = LineRow(*values)

    async def _read_requests(self, names: Iterable[OrderName]) -> None:
        for tenant, numbers in _lists(names):
            for row in await self._transaction.fetch_all(_SELECT_REQUESTS, (tenant, numbers)):
                _, number, fingerprint, kind, *view = row
                whole = view[1] is not None
                self._records.requests[tenant, number] = Request(fingerprint, kind, view if whole else None)

    async def _read_parked(self, names: Iterable[OrderName]) -> None:
        for refs in _chunks(sorted(names)):
            for tenant, ref, key in await self._transaction.fetch_all(_SELECT_PARKED, (refs,)):
                self._records.parked.setdefault((tenant, ref), []).append(key)

    async def _read_balances(self, keys: Iterable[str]) -> None:
        for some in _chunks(sorted(keys)):
            for key, *values in await self._transaction.fetch_all(_SELECT_BALANCES, (some,)):
                self._facts.balances[key] = BalanceRow(*values)

    async def _check_unknown(self, orders: set[OrderName], requests: set[OrderName]) -> None:
        """Nobody may be told of an order or request that it is unknown, or what it lacks, when it is there by now.

        Waiting for balances takes as long as others decide about them, and what they took might be of this very order. What
        is inserted here needs no second look: the unique key has it.
        """
        inserted = {(row[0], row[1]) for row in (*self._tables.order_rows, *self._tables.request_rows)}
        for statement, names, known in (
            (_FIND_ORDERS, orders, self._facts.orders.keys()),
            (_FIND_REQUESTS, requests, self._records.requests.keys()),
        ):
            for tenant, refs in _lists(names - known - inserted):
                if found := await self._transaction.fetch_all(statement, (tenant, refs)):
                    raise _Overtaken(f"{tenant}/{found[0][1]} has come to be")

    # --- write ----------------------------------------------------------------------------------------------------------

    async def write(self) -> bool:
        """Write what was decided; whether there was anything. What is unique comes first: then a collision costs least."""
        tables, known = self._tables, self._facts.orders
        new_orders, orders = _divide(tables.order_rows, known)
        new_lines, lines = _divide(tables.line_rows, known)
        ledger = tables.ledger_rows
        steps: tuple[tuple[Statement, Sequence[Row]], ...] = (
            (_INSERT_ORDER, new_orders),
            (_INSERT_REQUEST, tables.request_rows),
            (_UPSERT_ORDER, orders),
            (_INSERT_LINE, new_lines),
            (_UPSERT_LINE, lines),
            (_INSERT_LEDGER, ledger),
            (_UPSERT_BALANCE, tables.balance_rows),
        )
        for statement, rows in steps:
            await self._transaction.execute_many(statement, rows)
        return bool(ledger)


def _divide(rows: Iterable[Row], known: dict[OrderName, OrderRow]) -> tuple[list[Row], list[Row]]:
    """Rows of new orders, and those of orders that were known, each in their order."""
    new: list[Row] = []
    old: list[Row] = []
    for row in rows:
        (old if (row[0], row[1]) in known else new).append(row)
    return new, old


def _chunks(names: Iterable[_T]) -> Iterator[tuple[_T, ...]]:
    iterator = iter(names)
    while chunk := tuple(islice(iterator, LIST_MAX)):
        yield chunk


def _lists(names: Iterable[OrderName]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Tenants in their order, each with lists of names in theirs, which is the primary keys' order."""
    tenants: defaultdict[str, list[str]] = defaultdict(list)
    for tenant, name in names:
        tenants[tenant].append(name)
    for tenant, refs in sorted(tenants.items()):
        for chunk in _chunks(sorted(set(refs))):
            yield tenant, chunk


def _failed(ops: Sequence[Operation], outcome: Literal["not_executed", "unknown"], detail: str) -> Called:
    failure = Failure("UNAVAILABLE", outcome, detail)
    return Called(CallStatus.DECIDED, 0, 0, "", 0, 0, [failure] * len(ops))


def _closed(closed: _Closed, ops: Sequence[Operation]) -> Called:
    failure = Failure("SHARD_CLOSED", "not_executed", f"MySQL does not decide: {closed}")
    return Called(closed.status, closed.shard.epoch, 0, "", 0, closed.shard.now_ms, [failure] * len(ops))
