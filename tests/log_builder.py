"""Builds a shard's log without Redis: legal changes with after-images, entries with their digest chain, messages.

For tests that need what the leader would publish. `LogBuilder` keeps the state that Redis would have, so that what it
returns is exactly what a shard of that history appends; tests then repeat, regroup, lose or damage it.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from inventory.events import WIRE_VERSION, Change, Event, LogMessage, MessageType, chain, encode_message, genesis
from inventory.moves import MOVES, REQUEST_MOVES, LineState, Move
from inventory.operations import Line, lines_fingerprint
from inventory.operations import fingerprint as fingerprint_of

NOW_MS = 1_790_000_000_000


@dataclass
class Key:
    """A key as Redis has it."""

    available: int = 0
    reserved: int = 0
    sold: int = 0
    consumed: int = 0
    locked: int = 0
    seq: int = 0
    version: int = 0

    @property
    def quantities(self) -> tuple[int, int, int, int, int]:
        return self.available, self.reserved, self.sold, self.consumed, self.locked


@dataclass
class OrderLine:
    inventory_key: str
    qty: int
    state: LineState


@dataclass
class Order:
    tenant: str
    order_id: str
    fingerprint: str
    created_ms: int
    due_ms: int
    lines: list[OrderLine]


@dataclass
class LogBuilder:
    """One shard's Redis, as far as the log shows it. Each operation makes one `Change`; `entry` seals those since."""

    shard: int = 0
    epoch: int = 1
    term: int = 1
    tenant: str = "t1"
    now_ms: int = NOW_MS
    keys: dict[str, Key] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)
    entries: list[tuple[str, bytes]] = field(default_factory=list)
    """Digest and payload of entries 1, 2, 3, …"""
    pending: list[Change] = field(default_factory=list)

    @property
    def digest(self) -> str:
        return self.entries[-1][0] if self.entries else genesis(self.shard, self.epoch)

    @property
    def head_m(self) -> int:
        return len(self.entries)

    # --- operations -----------------------------------------------------------

    def adjust(self, inventory_key: str, delta: int, request_no: str = "") -> Change:
        return self._request(Move.ADJUST, inventory_key, delta, request_no)

    def lock(self, inventory_key: str, qty: int, request_no: str = "") -> Change:
        return self._request(Move.LOCK, inventory_key, qty, request_no)

    def unlock(self, inventory_key: str, qty: int, request_no: str = "") -> Change:
        return self._request(Move.UNLOCK, inventory_key, qty, request_no)

    def reserve(self, order_id: str, lines: dict[str, int], *, ttl_ms: int = 900_000) -> Change:
        order = Order(
            self.tenant,
            order_id,
            lines_fingerprint([Line(key, qty) for key, qty in lines.items()]),
            self.now_ms,
            self.now_ms + ttl_ms,
            [OrderLine(key, qty, LineState.NONE) for key, qty in lines.items()],
        )
        self.orders[order_id] = order
        return self._move(order, Move.RESERVE, range(len(order.lines)))

    def extend(self, order_id: str, ttl_ms: int = 1_800_000) -> Change:
        order = self.orders[order_id]
        order.due_ms = self.now_ms + ttl_ms
        return self._move(order, Move.EXTEND, self.places(order_id, LineState.RESERVED))

    def confirm(self, order_id: str, places: Sequence[int] | None = None) -> Change:
        return self.move(order_id, Move.CONFIRM, places)

    def release(self, order_id: str, places: Sequence[int] | None = None, reason: str = "cancelled") -> Change:
        return self.move(order_id, Move.RELEASE, places, reason=reason)

    def consume(self, order_id: str, places: Sequence[int] | None = None) -> Change:
        return self.move(order_id, Move.CONSUME, places)

    def return_(self, order_id: str, places: Sequence[int] | None = None) -> Change:
        return self.move(order_id, Move.RETURN, places, reason="no longer wanted")

    def move(self, order_id: str, kind: Move, places: Sequence[int] | None = None, *, reason: str = "") -> Change:
        """Move some lines of an order (default: all that are in the move's source state)."""
        order = self.orders[order_id]
        return self._move(order, kind, self.places(order_id, MOVES[kind].source) if places is None else places, reason)

    def places(self, order_id: str, state: LineState) -> list[int]:
        return [place for place, line in enumerate(self.orders[order_id].lines) if line.state == state]

    # --- the log ----------------------------------------------------------------

    def entry(self) -> int:
        """Seal the changes made since the last entry as the next one; returns its number."""
        assert self.pending
        return self.append_payload(msgspec.msgpack.encode(self.pending))

    def append_payload(self, payload: bytes) -> int:
        """Append an entry of any bytes, chained like any other."""
        self.entries.append((chain(self.digest, payload), payload))
        self.pending = []
        return len(self.entries)

    def message(self, first_m: int, last_m: int | None = None, *, term: int | None = None) -> bytes:
        """Entries `first_m` to `last_m` (default: that one) as the leader publishes them."""
        return encode_message(
            LogMessage(
                WIRE_VERSION,
                MessageType.ENTRIES,
                self.shard,
                self.epoch,
                self.term if term is None else term,
                first_m,
                self.entries[first_m - 1 : last_m or first_m],
            )
        )

    def term_message(self, term: int | None = None) -> bytes:
        number = self.term if term is None else term
        return encode_message(LogMessage(WIRE_VERSION, MessageType.TERM, self.shard, self.epoch, number))

    def close_message(
        self, after_m: int | None = None, next_mode: str = "opening", *, term: int | None = None
    ) -> bytes:
        return encode_message(
            LogMessage(
                WIRE_VERSION,
                MessageType.CLOSE,
                self.shard,
                self.epoch,
                self.term if term is None else term,
                after_m=self.head_m if after_m is None else after_m,
                next_mode=next_mode,
            )
        )

    def messages(self, entries_each: int = 1) -> list[bytes]:
        """The whole log, `entries_each` entries to a message."""
        return [
            self.message(m, min(m + entries_each - 1, self.head_m)) for m in range(1, self.head_m + 1, entries_each)
        ]

    def open_next_epoch(self) -> None:
        """Empty names, as a new epoch has them; quantities, seqs and orders go on as MySQL has them."""
        assert not self.pending
        self.epoch += 1
        self.entries = []

    # --- inside -----------------------------------------------------------------

    def _request(self, kind: Move, inventory_key: str, qty: int, request_no: str) -> Change:
        assert kind in REQUEST_MOVES
        key = self.keys.setdefault(inventory_key, Key())
        key.version += 1
        number = request_no or f"{kind.name}-{inventory_key}-{key.seq + 1}".replace(" ", "_")[:64]
        event = self._event(kind, inventory_key, qty, 0)
        change = Change(
            kind, self.tenant, number, self._tick(), f"trace-{number}"[:64], "operator", "stock", fingerprint_of(number), 0, "",
            0, 0, 0, [event],
        )  # fmt: skip
        self.pending.append(change)
        return change

    def _move(self, order: Order, kind: Move, places: Iterable[int], reason: str = "") -> Change:
        rule, events = MOVES[kind], list[Event]()
        for place in places:
            line = order.lines[place]
            assert line.state == rule.source, f"{kind.name} of a line that is {line.state.name}"
            line.state = rule.target
            events.append(self._event(kind, line.inventory_key, line.qty, place + 1))
        assert events
        change = Change(
            kind,
            order.tenant,
            order.order_id,
            self._tick(),
            f"trace-{order.order_id}"[:64],
            "orders",
            reason,
            order.fingerprint,
            order.due_ms,
            "buyer-1",
            len(order.lines),
            sum(line.state is LineState.RESERVED for line in order.lines),
            order.created_ms,
            events,
        )
        self.pending.append(change)
        return change

    def _event(self, kind: Move, inventory_key: str, qty: int, position: int) -> Event:
        key, rule = self.keys[inventory_key], MOVES[kind]
        deltas = [sign * qty for sign in rule.signs]
        after = [quantity + delta for quantity, delta in zip(key.quantities, deltas, strict=True)]
        assert min(after) >= 0, f"{kind.name} {qty} of {inventory_key} is not legal: {key}"
        key.available, key.reserved, key.sold, key.consumed, key.locked = after
        key.seq += 1
        return Event(inventory_key, key.seq, key.version, int(rule.target), qty, position, *deltas, *after)

    def _tick(self) -> int:
        self.now_ms += 7
        return self.now_ms


def random_log(
    seed: int, *, keys: int = 5, operations: int = 200, entry_changes_max: int = 8, lines_max: int = 4
) -> LogBuilder:
    """A log of legal changes over some keys: every move, orders of several lines, entries of several changes."""
    chance = random.Random(seed)
    log = LogBuilder()
    names = [f"sku {number}@store-{number % 3}" for number in range(keys)]
    for name in names:
        log.adjust(name, chance.randint(50, 500))
    log.entry()
    for number in range(operations):
        _random_operation(log, chance, names, number, lines_max)
        if log.pending and chance.random() < 2 / (1 + entry_changes_max):
            log.entry()
    if log.pending:
        log.entry()
    return log


def _random_operation(log: LogBuilder, chance: random.Random, names: list[str], number: int, lines_max: int) -> None:
    kind = chance.choice([*[Move.RESERVE] * 6, *list(MOVES)])
    if kind in REQUEST_MOVES:
        name = chance.choice(names)
        bound = log.keys[name].locked if kind is Move.UNLOCK else log.keys[name].available
        if kind is Move.ADJUST:
            log.adjust(name, chance.randint(-min(bound, 5), 20))
        elif bound:
            (log.lock if kind is Move.LOCK else log.unlock)(name, chance.randint(1, min(bound, 5)))
        return
    if kind is Move.RESERVE:
        wanted = {
            name: chance.randint(1, 3) for name in chance.sample(names, chance.randint(1, min(lines_max, len(names))))
        }
        if all(log.keys[name].available >= qty for name, qty in wanted.items()):
            log.reserve(f"order-{number}", wanted)
        return
    movable = [order_id for order_id in log.orders if log.places(order_id, MOVES[kind].source)]
    if not movable:
        return
    order_id = chance.choice(movable)
    if kind is Move.EXTEND:
        log.extend(order_id)
        return
    places = log.places(order_id, MOVES[kind].source)
    log.move(order_id, kind, sorted(chance.sample(places, chance.randint(1, len(places)))))
