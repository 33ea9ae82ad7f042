"""A working copy of what a batch touches in MySQL: every event is judged and applied here first. Pure.

The rules are those of `inventory.moves`; the rows that come out are in the order of the statements that write them and
of the primary keys that they have. The persist worker (`inventory.plan`) and the operator (`inventory.held`) share it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from inventory.events import Change, Event
from inventory.moves import MOVES, ORDER_MOVES, LineState, Move, Quantities
from inventory.sequence import BrokenChange
from kernel import limits

EXACT_BITS: Final = limits.EXACT_INTEGER_MAX.bit_length()

HELD: Final = 1
"""Bit of `inventory_balance.held`: events of this key are parked, so nobody may sell it."""
DRIFTED: Final = 2
"""Bit of `inventory_balance.held`: an event was rejected, so Redis' quantities are wrong until the shard is rebuilt.

Its later events of the same epoch are applied by their deltas: their numbers and after-images are Redis' wrong ones.
A key with any bit is not loaded and answers KEY_FROZEN.
"""


class BalanceRow(NamedTuple):
    """A key as MySQL has it."""

    available: int
    reserved: int
    sold: int
    consumed: int
    locked: int
    seq: int
    version: int
    held: int


class OrderRow(NamedTuple):
    """An order's header as MySQL has it. Times are UTC epoch ms; (epoch, m) is the entry of its last change."""

    fingerprint: str
    buyer_id: str
    line_count: int
    open_lines: int
    due_ms: int
    epoch: int
    m: int
    created_ms: int


class LineRow(NamedTuple):
    """One line of an order as MySQL has it; `state` is a `LineState`.

    The rest, reason and (epoch, seq) of its last change, is read only where an order is shown (`inventory.decide`).
    """

    inventory_key: str
    qty: int
    state: int
    reason: str = ""
    epoch: int = 0
    seq: int = 0


OrderName = tuple[str, str]
"""Tenant and order id, or tenant and request number."""
LineName = tuple[str, str, int]
"""Tenant, order id and the line's place in its order."""
Row = tuple[Any, ...]
"""Values of one row in the order of its statement's columns."""


@dataclass(slots=True)
class Facts:
    """What the database says about everything that a batch touches, read under the shard's lock."""

    balances: dict[str, BalanceRow] = field(default_factory=dict[str, BalanceRow])
    orders: dict[OrderName, OrderRow] = field(default_factory=dict[OrderName, OrderRow])
    lines: dict[LineName, LineRow] = field(default_factory=dict[LineName, LineRow])
    requests: set[OrderName] = field(default_factory=set[OrderName])
    parked: int = 0
    """Events parked in the whole shard."""
    listed: set[tuple[int, int, str]] = field(default_factory=set[tuple[int, int, str]])
    """Stale entries that are listed already: epoch, m, digest."""
    applied: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """Entries of closed epochs that had their effect before the epoch ended: epoch, m."""


@dataclass(slots=True)
class Touched:
    """Names of what a batch rests on."""

    keys: set[str] = field(default_factory=set[str])
    orders: set[OrderName] = field(default_factory=set[OrderName])
    requests: set[OrderName] = field(default_factory=set[OrderName])


def touched(changes: Iterable[Change | BrokenChange]) -> Touched:
    """Collect the names in some changes."""
    names = Touched()
    for change in changes:
        if isinstance(change, BrokenChange):
            names.keys.update(change.keys)
            continue
        names.keys.update([event.inventory_key for event in change.events])
        refs = names.orders if change.kind in ORDER_MOVES else names.requests
        refs.add((change.tenant, change.ref))
    return names


class _Rule(NamedTuple):
    """`inventory.moves.Rule` in plain numbers, which the inner loop reads fastest."""

    number: int
    of_order: bool
    source: int
    target: int
    signs: Quantities
    opens: int
    """What it adds to the order's open lines."""


def _rule(move: Move) -> _Rule:
    rule = MOVES[move]
    was_open, is_open = rule.source is LineState.RESERVED, rule.target is LineState.RESERVED
    return _Rule(int(move), move in ORDER_MOVES, int(rule.source), int(rule.target), rule.signs, is_open - was_open)


_RULES: Final = {move: _rule(move) for move in MOVES}


class Balance:
    """A key's working values: columns of `BalanceRow`, and whether they have to be written."""

    __slots__ = (
        "available",
        "changed",
        "consumed",
        "held",
        "locked",
        "reserved",
        "seq",
        "sold",
        "updated_ms",
        "version",
    )

    def __init__(self, row: BalanceRow) -> None:
        (
            self.available,
            self.reserved,
            self.sold,
            self.consumed,
            self.locked,
            self.seq,
            self.version,
            self.held,
        ) = row
        self.updated_ms = 0
        self.changed = False

    @property
    def quantities(self) -> Quantities:
        return Quantities(self.available, self.reserved, self.sold, self.consumed, self.locked)


class Order:
    """A header's working values: columns of `OrderRow`, and whether they have to be written."""

    __slots__ = (
        "buyer_id",
        "changed",
        "created_ms",
        "due_ms",
        "epoch",
        "fingerprint",
        "line_count",
        "m",
        "open_lines",
        "updated_ms",
    )

    def __init__(self, row: OrderRow) -> None:
        (
            self.fingerprint,
            self.buyer_id,
            self.line_count,
            self.open_lines,
            self.due_ms,
            self.epoch,
            self.m,
            self.created_ms,
        ) = row
        self.updated_ms = 0
        self.changed = False


class Tables:
    """A working copy of what a batch touches: events are judged and applied here, one after the other.

    `lines` and `requests` hold rows ready to be written; the properties give the others in primary-key order.
    """

    def __init__(self, shard_no: int, facts: Facts) -> None:
        self.shard_no = shard_no
        self.facts = facts
        self._balances: dict[str, Balance] = {}
        self._orders: dict[OrderName, Order] = {}
        self._lines: dict[LineName, LineRow] = {}
        self._line_rows: dict[LineName, Row] = {}
        self._request_rows: dict[OrderName, Row] = {}
        self._ledger: list[Row] = []

    def balance(self, key: str) -> Balance | None:
        """The key as it stands after what was applied so far, or None without a row."""
        balance = self._balances.get(key)
        if balance is None:
            row = self.facts.balances.get(key)
            if row is None:
                return None
            balance = self._balances[key] = Balance(row)
        return balance

    def place_balance(self, key: str) -> Balance:
        """An empty row for a key that has none: something has to say that it is held."""
        balance = self._balances[key] = Balance(BalanceRow(0, 0, 0, 0, 0, 0, 0, 0))
        return balance

    def order(self, name: OrderName) -> Order | None:
        """The order's header as it stands after what was applied so far."""
        order = self._orders.get(name)
        if order is None:
            row = self.facts.orders.get(name)
            if row is None:
                return None
            order = self._orders[name] = Order(row)
        return order

    def line(self, name: LineName) -> LineRow | None:
        """The line as it stands after what was applied so far."""
        return self._lines.get(name) or self.facts.lines.get(name)

    def fault(self, change: Change, event: Event, balance: Balance) -> str:  # noqa: PLR0911 -- one return for each rule
        """Why this event cannot be applied now, or the empty string. Changes nothing."""
        rule = _RULES.get(change.kind)
        if rule is None:
            return f"{change.kind.name} is not a move"
        qty = event.qty
        signs = rule.signs
        # The driver's binary protocol wraps what a column cannot hold, so the server would never refuse it.
        if (change.at_ms | change.due_ms | change.created_ms | change.line_count) >> EXACT_BITS:
            return f"a time or count is out of range: {change.at_ms}, {change.due_ms}, {change.created_ms}"
        if event.state != rule.target:
            return f"{change.kind.name} leads to state {rule.target}, the event says {event.state}"
        if (
            qty <= 0 and change.kind is not Move.ADJUST
        ) or not -limits.QUANTITY_TOTAL_MAX <= qty <= limits.QUANTITY_TOTAL_MAX:
            return f"{change.kind.name} of quantity {qty}"
        if (
            event.d_available != signs[0] * qty
            or event.d_reserved != signs[1] * qty
            or event.d_sold != signs[2] * qty
            or event.d_consumed != signs[3] * qty
            or event.d_locked != signs[4] * qty
        ):
            return f"the deltas are not those of {change.kind.name} {qty}"
        if not balance.held & DRIFTED:
            if event.seq != balance.seq + 1:
                return f"seq {event.seq} after {balance.seq}"
            if event.version != balance.version + (not rule.of_order):
                return f"inventory_version {event.version} after {balance.version}"
        fault = self._line_fault(change, event, rule) if rule.of_order else self._request_fault(change)
        return fault or _quantity_fault(event, balance)

    def _line_fault(self, change: Change, event: Event, rule: _Rule) -> str:  # noqa: PLR0911 -- as above
        line = self.line((change.tenant, change.ref, event.position))
        order = self.order((change.tenant, change.ref))
        if rule.source == LineState.NONE:
            if line is not None:
                return f"the order has a line {event.position} already"
            # Another line of the same change, or of the same change when it was parked, has made the header.
            if order is not None and (order.fingerprint, order.created_ms) != (change.fingerprint, change.created_ms):
                return "the order exists already"
            if order is None:
                return (
                    "" if 0 < event.position <= change.line_count else f"line {event.position} of {change.line_count}"
                )
        elif line is None or order is None:
            return "the order has no such line"
        elif line.inventory_key != event.inventory_key or line.qty != event.qty:
            return f"line {event.position} is {line.qty} of {line.inventory_key}"
        elif line.state != rule.source:
            return f"{change.kind.name} of a line in state {line.state}"
        if not 0 <= order.open_lines + rule.opens <= order.line_count:
            return f"{order.open_lines + rule.opens} open lines of {order.line_count}"
        return ""

    def _request_fault(self, change: Change) -> str:
        name = (change.tenant, change.ref)
        used = name in self.facts.requests or name in self._request_rows
        return "the request number was used already" if used else ""

    def accept(self, change: Change, event: Event, balance: Balance, epoch: int, m: int) -> None:
        """Apply an event without a fault. Its seq is the next one of its key whatever a drifted event says."""
        rule = _RULES[change.kind]
        balance.available += event.d_available
        balance.reserved += event.d_reserved
        balance.sold += event.d_sold
        balance.consumed += event.d_consumed
        balance.locked += event.d_locked
        balance.seq += 1
        if not rule.of_order:
            balance.version += 1
        balance.updated_ms = change.at_ms
        balance.changed = True
        self._append_ledger(rule.number, change, event, balance, epoch, m)
        if rule.of_order:
            self._move_line(change, event, balance.seq, rule, epoch, m)
        else:
            self._request_rows[change.tenant, change.ref] = (
                change.tenant,
                change.ref,
                event.inventory_key,
                rule.number,
                change.fingerprint,
                epoch,
                balance.seq,
            )

    def reject(self, change: Change, event: Event, balance: Balance, epoch: int, m: int, reason: str) -> None:
        """Leave an event without effect: a row of zero deltas that names its order, in the key's next place."""
        none = msgspec.structs.replace(event, d_available=0, d_reserved=0, d_sold=0, d_consumed=0, d_locked=0)
        balance.seq += 1
        balance.held |= DRIFTED
        balance.changed = True
        named = msgspec.structs.replace(change, reason=reason)
        self._append_ledger(int(Move.REJECTED), named, none, balance, epoch, m)

    def _append_ledger(self, number: int, change: Change, event: Event, balance: Balance, epoch: int, m: int) -> None:
        self._ledger.append(
            (
                event.inventory_key,
                balance.seq,
                self.shard_no,
                epoch,
                m,
                number,
                change.tenant,
                change.ref,
                event.state,
                event.qty,
                event.d_available,
                event.d_reserved,
                event.d_sold,
                event.d_consumed,
                event.d_locked,
                balance.available,
                balance.reserved,
                balance.sold,
                balance.consumed,
                balance.locked,
                balance.version,
                change.due_ms,
                change.at_ms,
                change.trace_id,
                change.actor,
                change.reason,
            )
        )

    def _move_line(self, change: Change, event: Event, seq: int, rule: _Rule, epoch: int, m: int) -> None:
        tenant, ref = change.tenant, change.ref
        name = (tenant, ref, event.position)
        self._lines[name] = LineRow(event.inventory_key, event.qty, rule.target)
        self._line_rows[name] = (
            tenant,
            ref,
            event.position,
            event.inventory_key,
            event.qty,
            rule.target,
            change.reason,
            epoch,
            seq,
            change.at_ms,
        )
        order = self.order((tenant, ref))
        if order is None:
            row = OrderRow(change.fingerprint, change.buyer_id, change.line_count, 0, 0, 0, 0, change.created_ms)
            order = self._orders[tenant, ref] = Order(row)
        order.open_lines += rule.opens
        order.changed = True
        # A replay of a parked event may come after later changes of the order's other lines.
        if (epoch, m) >= (order.epoch, order.m):
            order.due_ms = change.due_ms
            order.epoch = epoch
            order.m = m
            order.updated_ms = change.at_ms

    @property
    def ledger_rows(self) -> list[Row]:
        return sorted(self._ledger)

    @property
    def order_rows(self) -> list[Row]:
        return [
            (
                tenant,
                order_id,
                self.shard_no,
                order.fingerprint,
                order.buyer_id,
                order.line_count,
                order.open_lines,
                order.due_ms,
                order.epoch,
                order.m,
                order.created_ms,
                order.updated_ms,
            )
            for (tenant, order_id), order in sorted(self._orders.items(), key=first)
            if order.changed
        ]

    @property
    def line_rows(self) -> list[Row]:
        return [row for _, row in sorted(self._line_rows.items(), key=first)]

    @property
    def request_rows(self) -> list[Row]:
        return [row for _, row in sorted(self._request_rows.items(), key=first)]

    @property
    def balance_rows(self) -> list[Row]:
        return [
            (
                key,
                self.shard_no,
                balance.available,
                balance.reserved,
                balance.sold,
                balance.consumed,
                balance.locked,
                balance.quantities.total,
                balance.seq,
                balance.version,
                balance.held,
                balance.updated_ms,
            )
            for key, balance in sorted(self._balances.items(), key=first)
            if balance.changed
        ]


def _quantity_fault(event: Event, balance: Balance) -> str:
    available = balance.available + event.d_available
    reserved = balance.reserved + event.d_reserved
    sold = balance.sold + event.d_sold
    consumed = balance.consumed + event.d_consumed
    locked = balance.locked + event.d_locked
    if available < 0 or reserved < 0 or sold < 0 or consumed < 0 or locked < 0:
        return f"a quantity would be negative: {[available, reserved, sold, consumed, locked]}"
    if available + reserved + sold + consumed + locked > limits.QUANTITY_TOTAL_MAX:
        return f"the quantities would exceed what is exact: {[available, reserved, sold, consumed, locked]}"
    if not balance.held & DRIFTED and (
        available != event.available
        or reserved != event.reserved
        or sold != event.sold
        or consumed != event.consumed
        or locked != event.locked
    ):
        image = [event.available, event.reserved, event.sold, event.consumed, event.locked]
        return f"the deltas give {[available, reserved, sold, consumed, locked]}, the after-image is {image}"
    return ""


def first(item: tuple[Any, object]) -> Any:
    """The key of a pair, to sort by."""
    return item[0]
