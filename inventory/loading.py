"""From MySQL into the shard's names in Redis: keys, orders and operators' changes that Redis does not know.

Unknown to Redis is not unknown: whatever Redis lacks is read from MySQL together with the shard's row, from one
snapshot, and written by scripts that do nothing where somebody else was quicker. What MySQL lacks too is proven absent
by the row's (epoch, applied_m); the deciding script accepts that proof only in its own epoch, and only while nothing
newer has left Redis.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

import lua
import sql
from inventory.head import Position
from inventory.operations import BalanceView
from inventory.outcomes import CallStatus
from inventory.shard_state import NoSuchShard
from kernel import limits
from kernel.errors import ScriptFailed
from kernel.mysql_door import Database, Statement
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys

Ref = tuple[str, str]
"""Tenant, and order id or request number."""

_pack: Final = msgspec.msgpack.Encoder().encode
_decode_read_keys: Final = msgspec.msgpack.Decoder(tuple[int, list[list[Any]]]).decode


class LookUp(NamedTuple):
    """What MySQL said about some orders and requests in the state (epoch, applied_m), or a later one.

    A ref in none of the four collections is unknown to MySQL, and `applied_m` proves it within `epoch`.
    """

    epoch: int
    applied_m: int
    orders: frozenset[Ref]
    """Found whole and offered to Redis."""
    requests: frozenset[Ref]
    parked: dict[Ref, list[str]]
    """Changes of these wait for an operator, by the keys that are held: nothing may be concluded about them."""
    damaged: frozenset[Ref]
    """MySQL has them in part only, though nothing is parked: for the audit."""


class LoadedKeys(NamedTuple):
    """What became of some keys; those in neither collection are in Redis now, unless `epoch` is over."""

    epoch: int
    unknown: frozenset[str]
    held: frozenset[str]


class ReadBalance(NamedTuple):
    """A key as it stands. `source` says which store knows best: Redis where it is loaded in this epoch."""

    balance: BalanceView
    source: Literal["redis", "mysql"]
    epoch: int
    frozen: bool


class _Order(NamedTuple):
    """A header as `select_orders_with_shard` reads it. Times are UTC epoch ms."""

    tenant: str
    order_id: str
    fingerprint: str
    due_ms: int
    buyer_id: str
    created_ms: int
    line_count: int


class _Reading(NamedTuple):
    """Rows found by reference, and the oldest state of the shard that they were read in."""

    state: tuple[int, int]
    """(epoch, applied_m)."""
    any_parked: bool
    rows: dict[Ref, tuple[Any, ...]]


_NEWEST: Final = (limits.EXACT_INTEGER_MAX, limits.EXACT_INTEGER_MAX)


def _pieces(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _pieces_by_lines(orders: Iterable[_Order]) -> Iterator[list[_Order]]:
    """Orders for one script call each time: bounded by their number and by their lines together."""
    piece: list[_Order] = []
    lines = 0
    for order in orders:
        full = len(piece) == limits.LOAD_ORDERS_MAX or lines + order.line_count > limits.LOAD_ORDER_LINES_MAX
        if piece and full:
            yield piece
            piece, lines = [], 0
        piece.append(order)
        lines += order.line_count
    if piece:
        yield piece


class Loader:
    """Reads MySQL and writes what it finds into Redis, for one shard.

    `redis` is a door of its own, so that loading never stands before a deciding call. Methods raise what the two doors
    raise; whatever happens, nothing is decided by them, and everything they do may be done again.
    """

    def __init__(self, database: Database, redis: RedisDoor, shard: int) -> None:
        self._database = database
        self._redis = redis
        self._shard = shard
        self.applied = (0, Position(0, ""))
        """The newest state of the shard that was read: epoch, and the last entry that MySQL had applied of it."""
        self._load_keys = lua.load("load_keys")
        self._load_orders = lua.load("load_orders")
        self._read_keys = lua.load("read_keys")
        self._select_balances = sql.load("select_balances_with_shard")
        self._select_orders = sql.load("select_orders_with_shard")
        self._select_order_lines = sql.load("select_order_lines")
        self._select_requests = sql.load("select_requests_with_shard")
        self._select_parked = sql.load("select_parked_refs")

    # --- orders and operators' changes --------------------------------------------------------------------------------

    async def look_up(self, orders: Sequence[Ref], requests: Sequence[Ref] = ()) -> LookUp:
        """Ask MySQL about orders and requests, and load those it has into the epoch of the row read with them."""
        order_reading = await self._read(self._select_orders, orders)
        request_reading = await self._read(self._select_requests, requests)
        parked: dict[Ref, list[str]] = {}
        # What was absent from a later state was absent from the earlier one, so the older of two states proves both.
        state = min(order_reading.state, request_reading.state)
        if order_reading.any_parked or request_reading.any_parked:
            # A parked change that an operator replays moves from one table to another, perhaps between two statements.
            # Reading the parked ones between two readings of the others misses none that the first state had.
            parked = await self._parked([*orders, *requests])
            order_reading = await self._read(self._select_orders, orders)
            request_reading = await self._read(self._select_requests, requests)
        whole, damaged = await self._offer_orders(
            state, [_Order(*row) for ref, row in order_reading.rows.items() if ref not in parked]
        )
        found = [row for ref, row in request_reading.rows.items() if ref not in parked]
        without_ledger = {(row[0], row[1]) for row in found if row[5] is None}
        await self._offer_requests(state, [row for row in found if row[5] is not None])
        return LookUp(
            *state,
            orders=whole,
            requests=frozenset((row[0], row[1]) for row in found) - without_ledger,
            parked=parked,
            damaged=damaged | without_ledger,
        )

    async def _read(self, statement: Statement, refs: Sequence[Ref]) -> _Reading:
        state, any_parked = _NEWEST, False
        rows: dict[Ref, tuple[Any, ...]] = {}
        for piece in _pieces(refs, limits.LOAD_ORDERS_MAX):
            answer = await self._database.fetch_all(statement, (tuple(piece), self._shard))
            if not answer:
                raise NoSuchShard(f"no row for shard {self._shard}: run `stockgate migrate`")
            epoch, applied_m, applied_digest, parked = answer[0][:4]
            self._learn(epoch, Position(applied_m, applied_digest))
            state = min(state, (epoch, applied_m))
            any_parked = any_parked or bool(parked)
            rows |= {(row[4], row[5]): row[4:] for row in answer if row[4] is not None}
        return _Reading(state, any_parked, rows)

    async def _parked(self, refs: Sequence[Ref]) -> dict[Ref, list[str]]:
        parked: dict[Ref, list[str]] = {}
        for piece in _pieces(refs, limits.LOAD_ORDERS_MAX):
            for tenant, ref, inventory_key in await self._database.fetch_all(self._select_parked, (tuple(piece),)):
                parked.setdefault((tenant, ref), []).append(inventory_key)
        return parked

    async def _offer_orders(
        self, state: tuple[int, int], orders: Iterable[_Order]
    ) -> tuple[frozenset[Ref], frozenset[Ref]]:
        """Write orders with all their lines where Redis has none of them; returns those whole, and those that are not.

        The lines are read after the headers. They can only be newer if the order changed in this epoch after `state`:
        then Redis still has the record, or has let go a newer entry than `state` proves, and the script refuses.
        """
        names = EpochKeys(self._shard, state[0])
        whole: set[Ref] = set()
        damaged: set[Ref] = set()
        for piece in _pieces_by_lines(orders):
            refs = tuple((order.tenant, order.order_id) for order in piece)
            lines: dict[Ref, list[tuple[Any, ...]]] = {ref: [] for ref in refs}
            for row in await self._database.fetch_all(self._select_order_lines, (refs,)):
                lines[row[0], row[1]].append(row[2:])
            packed: list[tuple[Any, ...]] = []
            for ref, order in zip(refs, piece, strict=True):
                if len(lines[ref]) == order.line_count:
                    whole.add(ref)
                    packed.append((*order, lines[ref]))
                else:
                    damaged.add(ref)
            if packed:
                records = [names.order(order[0], order[1]) for order in packed]
                await self._offer(names, records, [state[1], packed, []])
        return frozenset(whole), frozenset(damaged)

    async def _offer_requests(self, state: tuple[int, int], rows: Sequence[tuple[Any, ...]]) -> None:
        names = EpochKeys(self._shard, state[0])
        for piece in _pieces(rows, limits.LOAD_ORDERS_MAX):
            packed = [(*row[:4], row[4:]) for row in piece]
            await self._offer(names, [names.request(row[0], row[1]) for row in piece], [state[1], [], packed])

    async def _offer(self, names: EpochKeys, records: Sequence[str], argument: list[Any]) -> None:
        # A refusal needs no handling here: the deciding call meets the same fence, or asks for a newer look-up.
        await self._redis.run(self._load_orders, [names.head, names.due, names.settled, *records], [_pack(argument)])

    # --- keys ---------------------------------------------------------------------------------------------------------

    async def load_keys(self, keys: Sequence[str]) -> LoadedKeys:
        """Load keys into the epoch of the row read with them. A key's row cannot change before its first event of it."""
        known: set[str] = set()
        held: set[str] = set()
        oldest = limits.EXACT_INTEGER_MAX
        for piece in _pieces(keys, limits.LOAD_KEYS_MAX):
            epoch, rows = await self._balances(piece)
            oldest = min(oldest, epoch)
            known.update(row[0] for row in rows)
            held.update(row[0] for row in rows if row[-1])
            if packed := [row[:-1] for row in rows if not row[-1]]:
                names = EpochKeys(self._shard, epoch)
                balances = [names.balance(row[0]) for row in packed]
                await self._redis.run(self._load_keys, [names.head, names.opened, *balances], [_pack(packed)])
        return LoadedKeys(oldest, frozenset(keys) - known, frozenset(held))

    async def _balances(self, keys: Sequence[str]) -> tuple[int, list[tuple[Any, ...]]]:
        """The shard's epoch, and (key, five quantities, seq, version, held) of each key that MySQL knows."""
        answer = await self._database.fetch_all(self._select_balances, (tuple(keys), self._shard))
        if not answer:
            raise NoSuchShard(f"no row for shard {self._shard}: run `stockgate migrate`")
        epoch, applied_m, applied_digest = answer[0][:3]
        self._learn(epoch, Position(applied_m, applied_digest))
        return epoch, [row[3:] for row in answer if row[3] is not None]

    def _learn(self, epoch: int, applied: Position) -> None:
        self.applied = max(self.applied, (epoch, applied))

    async def read_balances(self, epoch: int, known: Position, keys: Sequence[str]) -> dict[str, ReadBalance]:
        """Read keys without loading them: from Redis in `epoch` (0 = not at all), the rest from MySQL.

        `known` is an entry of that epoch that is known to be confirmed (m 0 = none): a Redis without it is not read.
        Keys that neither knows are absent from the answer.
        """
        found: dict[str, ReadBalance] = {}
        if epoch:
            for piece in _pieces(keys, limits.LOAD_KEYS_MAX):
                found |= await self._read_loaded(epoch, known, piece)
        for piece in _pieces([key for key in keys if key not in found], limits.LOAD_KEYS_MAX):
            row_epoch, rows = await self._balances(piece)
            for row in rows:
                found[row[0]] = ReadBalance(BalanceView(*row[:8]), "mysql", row_epoch, bool(row[8]))
        return found

    async def _read_loaded(self, epoch: int, known: Position, keys: Sequence[str]) -> dict[str, ReadBalance]:
        names = EpochKeys(self._shard, epoch)
        balances = [names.balance(key) for key in keys]
        declared = [names.head, names.log, names.opened, *balances]
        reply = await self._redis.run(self._read_keys, declared, [_pack(list(keys)), *known])
        try:
            code, rows = _decode_read_keys(reply)
        except msgspec.MsgspecError as error:
            raise ScriptFailed(f"read_keys: {error}") from error
        if code != CallStatus.DECIDED:
            return {}
        return {
            key: ReadBalance(BalanceView(*row[1:9]), "redis", epoch, bool(row[9]))
            for key, row in zip(keys, rows, strict=True)
            if row[0] == 1
        }
