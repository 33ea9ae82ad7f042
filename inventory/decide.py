"""Decides operations on rows of MySQL as the scripts decide them on the records of Redis. Pure.

The checks are those of `lua/orders.lua` and `lua/requests.lua`, in the same order, on the one table of `inventory.moves`;
tests run both on the same operations. What differs: every row is there or does not exist, so nothing has to be loaded or
looked up, and nothing waits to be confirmed. What is accepted is applied to `Tables` as the persist worker applies it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from inventory.events import Change, Event
from inventory.moves import EXPIRED, MOVES, ORDER_MOVES, REQUEST_MOVES, LineState, Move, Quantities, Rule
from inventory.operations import Operation, Result
from inventory.outcomes import Outcome
from inventory.tables import Balance, Facts, Order, OrderName, OrderRow, Tables
from kernel import limits

NO_ENTRY: Final = 0
"""`m` of a change that MySQL decided: it is in no log."""


class Moment(NamedTuple):
    """When and in which epoch something is decided. Times are UTC epoch ms by MySQL's clock."""

    epoch: int
    now_ms: int
    grace_until_ms: int
    """No hold is due before: an outage of ours eats no buyer's time."""

    def effective_due_ms(self, due_ms: int) -> int:
        """When a hold with this stored due time ends."""
        return max(due_ms, self.grace_until_ms)


class Request(NamedTuple):
    """An operator's change that was accepted. `view` is the `BalanceView` that it left; None: its ledger row is missing."""

    fingerprint: str
    kind: int
    view: list[Any] | None


@dataclass(slots=True)
class Records:
    """What MySQL knows of operators' changes, and of what is parked, among the names that operations bear."""

    requests: dict[OrderName, Request] = field(default_factory=dict[OrderName, Request])
    parked: dict[OrderName, list[str]] = field(default_factory=dict[OrderName, list[str]])
    """Orders and requests of which changes wait for an operator, with the held keys: nothing is known of them for sure."""


OrderLine = list[Any]
"""One line of an order as `operations.OrderLine` has it. Replaced, never altered, so that results can share it."""
Hindrance = tuple[Outcome, list[Any]] | None
"""Outcome and detail of what stands in the way of a move."""


class _Order:
    """An order's lines in their places. The header is the one of `Tables`."""

    __slots__ = ("head", "lines", "name")

    def __init__(self, name: OrderName, head: Order, lines: Sequence[OrderLine]) -> None:
        self.name = name
        self.head = head
        self.lines = lines

    def positions(self, state: LineState) -> list[int]:
        """Places, from 0, of the lines in this state."""
        return [position for position, line in enumerate(self.lines) if line[_STATE] == state]


_KEY: Final = 0
_QTY: Final = 1
_STATE: Final = 2
_REASON: Final = 3

_LOST: Final = "lost"
"""Stands for an order whose rows do not fit together."""


def _taken_from(rule: Rule) -> str:
    """The one of the five quantities that must hold what is moved; none for EXTEND, and ADJUST checks by itself."""
    return next((name for name, sign in zip(Quantities._fields, rule.signs, strict=True) if sign < 0), "")


_TAKEN_FROM: Final = {move: _taken_from(rule) for move, rule in MOVES.items()}


def within_bound(facts: Facts, ops: Sequence[Operation]) -> int:
    """How many of the operations one transaction takes: the first ones, whose orders' lines stay within a bound.

    Of `facts` only the orders' headers are read. The rest is SKIPPED, which the caller repeats: 512 confirms may be of
    1,000 lines each. One operation always fits.
    """
    walked = 0
    new: dict[OrderName, int] = {}
    for taken, op in enumerate(ops):
        if walked >= limits.DECIDE_LINES_MAX:
            return taken
        if op.kind in REQUEST_MOVES:
            continue
        name = (op.tenant, op.ref)
        header = facts.orders.get(name)
        if header is not None:
            walked += header.line_count
        else:
            if op.kind is Move.RESERVE:
                new.setdefault(name, len(op.lines))
            walked += new.get(name, 0)
    return len(ops)


def keys_to_lock(facts: Facts, records: Records, moment: Moment, ops: Iterable[Operation]) -> set[str]:
    """The keys whose balances these operations may change: no decision looks at another one.

    Of `facts` the orders and their lines are read. A line that moves twice in a batch moves first from the state in which
    it is read, so each operation need only name the lines that it could move as they are.
    """
    keys: set[str] = set()
    for op in ops:
        name = (op.tenant, op.ref)
        if name in records.parked:
            continue
        if op.kind in REQUEST_MOVES:
            if name not in records.requests:
                keys.update(op.keys())
        elif (header := facts.orders.get(name)) is not None:
            states = _states_moved(header, moment, op)
            for position in range(1, header.line_count + 1) if states else ():
                line = facts.lines.get((*name, position))
                if line is not None and line.state in states:
                    keys.add(line.inventory_key)
        elif op.kind is Move.RESERVE:
            keys.update(op.keys())
    return keys


def _states_moved(header: OrderRow, moment: Moment, op: Operation) -> set[int]:
    states: set[int] = set()
    if header.open_lines and moment.now_ms >= moment.effective_due_ms(header.due_ms):
        states.add(LineState.RESERVED)
    if op.kind in ORDER_MOVES and op.kind is not Move.RESERVE:
        states.add(MOVES[op.kind].source)
    return states


class WorkingCopy:
    """Rows that were read under their locks, as they stand after what was decided so far."""

    def __init__(self, shard_no: int, facts: Facts, records: Records, moment: Moment) -> None:
        self.tables = Tables(shard_no, facts)
        """What has to be written in the end."""
        self.changes: list[Change] = []
        """What was accepted, in order."""
        self._moment = moment
        self._records = records
        self._orders: dict[OrderName, _Order | str | None] = {}
        self._requests = dict(records.requests)

    def decide(self, ops: Sequence[Operation]) -> list[Result]:
        """Decide operations in their order: one result for each. Raises ValueError, before anything, on a caller's bug."""
        for op in ops:
            _check_shape(op)
        return [self._decide_request(op) if op.kind in REQUEST_MOVES else self._decide_order(op) for op in ops]

    # --- orders -------------------------------------------------------------------------------------------------------

    def _decide_order(self, op: Operation) -> Result:
        name = (op.tenant, op.ref)
        if name in self._records.parked:
            return _result(Outcome.KEY_FROZEN, self._records.parked[name])
        order = self._order(name)
        if order is None:
            return self._new_reserve(name, op) if op.kind is Move.RESERVE else _result(Outcome.UNKNOWN_ORDER)
        if isinstance(order, str):
            return _result(Outcome.LOST, [])
        return self._decide_known(order, op)

    def _order(self, name: OrderName) -> _Order | str | None:
        """The order as it stands, None where there is none, `_LOST` where its lines are not what its header says."""
        if name not in self._orders:
            self._orders[name] = self._read_order(name)
        return self._orders[name]

    def _read_order(self, name: OrderName) -> _Order | str | None:
        head = self.tables.order(name)
        if head is None:
            return None
        rows = [self.tables.facts.lines.get((*name, position)) for position in range(1, head.line_count + 1)]
        lines = [list(row) for row in rows if row is not None]
        order = _Order(name, head, lines)
        whole = len(lines) == head.line_count and len(order.positions(LineState.RESERVED)) == head.open_lines
        return order if whole else _LOST

    def _decide_known(self, order: _Order, op: Operation) -> Result:
        kind, open_before = op.kind, order.head.open_lines
        hindrance = self._apply_expiry(order, op)
        if kind is Move.READ:
            # Reading tells what is there even where the expiry cannot be applied now.
            return self._order_result(Outcome.DONE, order)
        if hindrance is not None:
            return _result(*hindrance)
        if kind is Move.EXPIRE:
            return self._order_result(Outcome.DONE, order, replay=int(order.head.open_lines == open_before))
        if kind is Move.RESERVE:
            return self._repeat_reserve(order, op)
        if kind is Move.EXTEND:
            return self._extend(order, op)
        return self._settle(order, op)

    def _apply_expiry(self, order: _Order, op: Operation) -> Hindrance:
        """Release what is past due, as a change of the clock's own, before anything else is decided about the order."""
        head = order.head
        if not head.open_lines or self._moment.now_ms < self._moment.effective_due_ms(head.due_ms):
            return None
        return self._try_move(order, order.positions(LineState.RESERVED), Move.RELEASE, op, EXPIRED, "", head.due_ms)

    def _repeat_reserve(self, order: _Order, op: Operation) -> Result:
        """RESERVE of an order that is known: only its own repeat may pass."""
        head = order.head
        other_buyer = op.buyer_id and head.buyer_id and op.buyer_id != head.buyer_id
        if other_buyer or op.fingerprint != head.fingerprint:
            return self._order_result(Outcome.ORDER_CONFLICT, order)
        if not head.open_lines:
            return self._order_result(Outcome.ORDER_CLOSED, order)
        return self._order_result(Outcome.DONE, order, replay=1)

    def _new_reserve(self, name: OrderName, op: Operation) -> Result:
        """RESERVE of an order that is new: all lines or nothing."""
        out_of_range = [line.inventory_key for line in op.lines if not 1 <= line.qty <= limits.QTY_MAX]
        if out_of_range:
            return _result(Outcome.QUANTITY_LIMIT, out_of_range)
        lines: list[OrderLine] = [[line.inventory_key, line.qty, int(LineState.NONE), "", 0, 0] for line in op.lines]
        hindrance = self._hindrance(Move.RESERVE, lines)
        if hindrance is not None:
            return _result(*hindrance)
        due_ms = self._moment.now_ms + op.ttl_ms
        # What `Tables.accept` makes of the first of its events: the header stands there from then on.
        row = OrderRow(op.fingerprint, op.buyer_id, len(lines), 0, due_ms, 0, 0, self._moment.now_ms)
        order = _Order(name, Order(row), lines)
        self._move(order, range(len(lines)), Move.RESERVE, op, op.reason, op.actor, due_ms)
        self._orders[name] = order
        return self._order_result(Outcome.DONE, order)

    def _extend(self, order: _Order, op: Operation) -> Result:
        """A later due time for all that is still held."""
        positions = order.positions(LineState.RESERVED)
        if not positions:
            return self._blocked(order, Move.EXTEND, [_obstacle(line) for line in order.lines])
        due_ms = self._moment.now_ms + op.ttl_ms
        if due_ms <= self._moment.effective_due_ms(order.head.due_ms):
            return self._order_result(Outcome.DONE, order, replay=1)
        hindrance = self._try_move(order, positions, Move.EXTEND, op, op.reason, op.actor, due_ms)
        return _result(*hindrance) if hindrance is not None else self._order_result(Outcome.DONE, order)

    def _settle(self, order: _Order, op: Operation) -> Result:
        """CONFIRM, RELEASE, CONSUME, RETURN."""
        kind, rule = op.kind, MOVES[op.kind]
        positions, unknown = _named_positions(order, op)
        if unknown:
            return self._order_result(Outcome.UNKNOWN_LINE, order, detail=unknown)
        states = [order.lines[position][_STATE] for position in positions]
        moving = [position for position, state in zip(positions, states, strict=True) if state == rule.source]
        there = sum(state == rule.target for state in states)
        obstacles = [
            _obstacle(order.lines[position])
            for position, state in zip(positions, states, strict=True)
            if state not in {rule.source, rule.target}
        ]
        # To release an order means to release what is still held of it.
        lenient = kind is Move.RELEASE and not op.lines and (moving or there)
        if obstacles and not lenient:
            return self._blocked(order, kind, obstacles)
        if not moving:
            return self._order_result(Outcome.DONE, order, replay=1)
        hindrance = self._try_move(order, moving, kind, op, op.reason, op.actor, order.head.due_ms)
        return _result(*hindrance) if hindrance is not None else self._order_result(Outcome.DONE, order)

    def _blocked(self, order: _Order, kind: Move, obstacles: list[list[Any]]) -> Result:
        """The refusal where lines stand in the way of a move: a hold that the clock ended has a name of its own."""
        if kind in {Move.CONFIRM, Move.EXTEND} and any(
            state == LineState.RELEASED and reason == EXPIRED for _, state, reason in obstacles
        ):
            return self._order_result(Outcome.HOLD_EXPIRED, order)
        return self._order_result(Outcome.ILLEGAL_TRANSITION, order, detail=obstacles)

    def _order_result(
        self, outcome: Outcome, order: _Order, *, replay: int = 0, detail: list[Any] | None = None
    ) -> Result:
        """An answer that tells how the order stands at this turn, or the detail given."""
        if detail is None:
            head = order.head
            detail = [self._moment.effective_due_ms(head.due_ms), head.buyer_id, order.lines]
        return Result(outcome, replay, detail=detail)

    # --- moves of lines -------------------------------------------------------------------------------------------------

    def _hindrance(self, kind: Move, lines: Iterable[OrderLine]) -> Hindrance:
        """Why these lines cannot make this move together.

        To hold less than was moved there before is damage, not shortage: only RESERVE can come short. That a key is unknown
        is a caller's mistake in a new order alone.
        """
        taken_from = _TAKEN_FROM[kind]
        asked: dict[str, int] = {}
        damaged: list[str] = []
        frozen: list[str] = []
        short: list[list[Any]] = []
        for line in lines:
            key = line[_KEY]
            balance = self.tables.balance(key)
            if balance is None:
                damaged.append(key)
            elif balance.held:
                frozen.append(key)
            elif taken_from:
                # A key may stand in several lines.
                asked[key] = wanted = asked.get(key, 0) + line[_QTY]
                there = getattr(balance, taken_from)
                if wanted > there and kind is Move.RESERVE:
                    short.append([key, wanted, there])
                elif wanted > there:
                    damaged.append(key)
        if damaged:
            return (Outcome.UNKNOWN_INVENTORY_KEY if kind is Move.RESERVE else Outcome.LOST), damaged
        if frozen:
            return Outcome.KEY_FROZEN, frozen
        return (Outcome.INSUFFICIENT_STOCK, short) if short else None

    def _try_move(
        self, order: _Order, positions: Sequence[int], kind: Move, op: Operation, reason: str, actor: str, due_ms: int
    ) -> Hindrance:
        """Move lines unless something is in the way; returns what is."""
        hindrance = self._hindrance(kind, [order.lines[position] for position in positions])
        if hindrance is None:
            self._move(order, positions, kind, op, reason, actor, due_ms)
        return hindrance

    def _move(
        self, order: _Order, positions: Sequence[int], kind: Move, op: Operation, reason: str, actor: str, due_ms: int
    ) -> None:
        """Move the lines at these places and note one change. The caller has heard of no hindrance."""
        rule, head, moment = MOVES[kind], order.head, self._moment
        opened = (rule.target is LineState.RESERVED) - (rule.source is LineState.RESERVED)
        change = Change(
            kind=kind,
            tenant=op.tenant,
            ref=op.ref,
            at_ms=moment.now_ms,
            trace_id=op.trace_id,
            actor=actor,
            reason=reason,
            fingerprint=head.fingerprint,
            due_ms=due_ms,
            buyer_id=head.buyer_id,
            line_count=head.line_count,
            open_lines=head.open_lines + opened * len(positions),
            created_ms=head.created_ms,
            events=[],
        )
        lines = list(order.lines)
        for position in positions:
            key, qty = lines[position][:2]
            seq = self._accept(change, rule, key, qty, position + 1)
            lines[position] = [key, qty, int(rule.target), reason, moment.epoch, seq]
        order.lines = lines
        order.head = self.tables.order(order.name) or head
        self.changes.append(change)

    def _accept(self, change: Change, rule: Rule, key: str, qty: int, position: int) -> int:
        """Move a quantity of a key; returns the key's seq after it."""
        balance = self.tables.balance(key)
        if balance is None:
            raise LookupError(f"{key} was not looked at before it moves")
        deltas = [sign * qty for sign in rule.signs]
        after = [value + delta for value, delta in zip(balance.quantities, deltas, strict=True)]
        version = balance.version + (change.kind in REQUEST_MOVES)
        event = Event(key, balance.seq + 1, version, int(rule.target), qty, position, *deltas, *after)
        change.events.append(event)
        self.tables.accept(change, event, balance, self._moment.epoch, NO_ENTRY)
        return event.seq

    # --- operators' changes ---------------------------------------------------------------------------------------------

    def _decide_request(self, op: Operation) -> Result:
        name = (op.tenant, op.ref)
        if name in self._records.parked:
            return _result(Outcome.KEY_FROZEN, self._records.parked[name])
        request = self._requests.get(name)
        if request is not None:
            return _repeat_request(request, op)
        key, qty = op.lines[0].inventory_key, op.lines[0].qty
        balance = self.tables.balance(key)
        if balance is None:
            return _result(Outcome.UNKNOWN_INVENTORY_KEY, [key])
        hindrance = _request_hindrance(balance, key, op, qty)
        if hindrance is not None:
            return _result(*hindrance)
        view = self._change_by_request(balance, key, op, qty)
        self._requests[name] = Request(op.fingerprint, op.kind, view)
        return Result(Outcome.DONE, detail=view)

    def _change_by_request(self, balance: Balance, key: str, op: Operation, qty: int) -> list[Any]:
        """Change one balance: version and seq move. Returns the key as a `BalanceView` afterwards."""
        change = Change(
            kind=op.kind,
            tenant=op.tenant,
            ref=op.ref,
            at_ms=self._moment.now_ms,
            trace_id=op.trace_id,
            actor=op.actor,
            reason=op.reason,
            fingerprint=op.fingerprint,
            due_ms=0,
            buyer_id="",
            line_count=0,
            open_lines=0,
            created_ms=0,
            events=[],
        )
        self._accept(change, MOVES[op.kind], key, qty, 0)
        self.changes.append(change)
        return [key, *balance.quantities, balance.seq, balance.version]


def _repeat_request(request: Request, op: Operation) -> Result:
    if request.view is None:
        return _result(Outcome.LOST, [])
    if (request.fingerprint, request.kind) != (op.fingerprint, op.kind):
        return _result(Outcome.REQUEST_CONFLICT)
    return Result(Outcome.DONE, 1, detail=request.view)


def _request_hindrance(balance: Balance, key: str, op: Operation, qty: int) -> Hindrance:
    """Why a balance cannot take an operator's change."""
    if balance.held:
        return Outcome.KEY_FROZEN, [key]
    if op.base_version not in {-1, balance.version}:
        return Outcome.VERSION_CONFLICT, [balance.version]
    adjusts = op.kind is Move.ADJUST
    least = -limits.QUANTITY_TOTAL_MAX if adjusts else 1
    if not least <= qty <= limits.QUANTITY_TOTAL_MAX:
        return Outcome.QUANTITY_LIMIT, [key]
    taken = -qty if adjusts else qty
    there = balance.available if adjusts else getattr(balance, _TAKEN_FROM[op.kind])
    if there < taken:
        return Outcome.INSUFFICIENT_STOCK, [[key, taken, there]]
    if adjusts and balance.quantities.total + qty > limits.QUANTITY_TOTAL_MAX:
        return Outcome.QUANTITY_LIMIT, [key]
    return None


def _check_shape(op: Operation) -> None:
    known = op.kind in MOVES or op.kind in {Move.READ, Move.EXPIRE}
    if not known:
        raise ValueError(f"{op.kind} is nothing to decide")
    if (op.kind is Move.RESERVE and not op.lines) or (op.kind in REQUEST_MOVES and len(op.lines) != 1):
        raise ValueError(f"wrong number of lines for {op.kind.name}: {len(op.lines)}")


def _result(outcome: Outcome, detail: list[Any] | None = None) -> Result:
    return Result(outcome, detail=detail)


def _obstacle(line: OrderLine) -> list[Any]:
    return [line[_KEY], line[_STATE], line[_REASON]]


def _named_positions(order: _Order, op: Operation) -> tuple[Sequence[int], list[str]]:
    """Places of the lines that an operation is about, and the keys it names that the order does not have."""
    if not op.lines:
        return range(len(order.lines)), []
    named = set(op.keys())
    positions = [position for position, line in enumerate(order.lines) if line[_KEY] in named]
    known = {order.lines[position][_KEY] for position in positions}
    return positions, [line.inventory_key for line in op.lines if line.inventory_key not in known]
