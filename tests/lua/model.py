"""A small model of the deciding scripts: plain objects, one operation at a time, no Redis, no time but a flag."""

from dataclasses import dataclass, field

from inventory.moves import EXPIRED, MOVES, ORDER_MOVES, REQUEST_MOVES, LineState, Move
from inventory.operations import Operation
from inventory.outcomes import Outcome


@dataclass
class Balance:
    quantities: list[int]
    seq: int = 0
    version: int = 0
    adjusted: int = 0
    """The sum of all adjustments; the five quantities must always add up to it."""


@dataclass
class OrderLine:
    key: str
    qty: int
    state: LineState = LineState.NONE
    reason: str = ""


@dataclass
class Order:
    fingerprint: str
    buyer_id: str
    lines: list[OrderLine]
    past_due: bool
    due_rank: int = 0
    """Which of the growing times to live it was last given."""

    def positions(self, *states: LineState) -> list[int]:
        return [i for i, line in enumerate(self.lines) if line.state in states]


@dataclass
class Verdict:
    outcome: Outcome
    replay: int = 0


@dataclass
class Model:
    balances: dict[str, Balance] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)
    requests: dict[str, tuple[str, Move, list[object]]] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)

    def decide(self, operation: Operation) -> Verdict:
        if operation.kind in REQUEST_MOVES:
            return self._request(operation)
        order = self.orders.get(operation.ref)
        if order is None:
            return self._new(operation) if operation.kind is Move.RESERVE else Verdict(Outcome.UNKNOWN_ORDER)
        held = order.positions(LineState.RESERVED)
        expiring = order.past_due and bool(held)
        expired = expiring and self._move(order, held, Move.RELEASE, EXPIRED)
        if operation.kind is Move.READ:
            return Verdict(Outcome.DONE)
        return Verdict(Outcome.KEY_FROZEN) if expiring and not expired else self._known(order, operation, expired)

    def _known(self, order: Order, operation: Operation, expired: bool) -> Verdict:
        match operation.kind:
            case Move.EXPIRE:
                return Verdict(Outcome.DONE, replay=0 if expired else 1)
            case Move.RESERVE:
                return self._again(order, operation)
            case Move.EXTEND:
                return self._extend(order, operation)
            case _:
                assert operation.kind in ORDER_MOVES
                return self._settle(order, operation)

    def _new(self, operation: Operation) -> Verdict:
        asked = operation.lines
        if any(line.inventory_key in self.frozen for line in asked):
            return Verdict(Outcome.KEY_FROZEN)
        if any(self.balances[line.inventory_key].quantities[0] < line.qty for line in asked):
            return Verdict(Outcome.INSUFFICIENT_STOCK)
        lines = [OrderLine(line.inventory_key, line.qty) for line in asked]
        order = Order(operation.fingerprint, operation.buyer_id, lines, past_due=operation.ttl_ms == 0)
        self.orders[operation.ref] = order
        self._move(order, list(range(len(lines))), Move.RESERVE, operation.reason)
        return Verdict(Outcome.DONE)

    def _again(self, order: Order, operation: Operation) -> Verdict:
        other_buyer = operation.buyer_id and order.buyer_id and operation.buyer_id != order.buyer_id
        if other_buyer or operation.fingerprint != order.fingerprint:
            return Verdict(Outcome.ORDER_CONFLICT)
        return Verdict(Outcome.DONE, 1) if order.positions(LineState.RESERVED) else Verdict(Outcome.ORDER_CLOSED)

    def _extend(self, order: Order, operation: Operation) -> Verdict:
        held = order.positions(LineState.RESERVED)
        if not held:
            return self._blocked(order, Move.EXTEND, list(range(len(order.lines))))
        rank = operation.ttl_ms // 10_000_000
        if rank <= order.due_rank:
            return Verdict(Outcome.DONE, 1)
        if not self._move(order, held, Move.EXTEND, operation.reason):
            return Verdict(Outcome.KEY_FROZEN)
        order.due_rank = rank
        return Verdict(Outcome.DONE)

    def _settle(self, order: Order, operation: Operation) -> Verdict:
        named = {line.inventory_key for line in operation.lines}
        if named - {line.key for line in order.lines}:
            return Verdict(Outcome.UNKNOWN_LINE)
        chosen = [i for i, line in enumerate(order.lines) if not named or line.key in named]
        rule = MOVES[operation.kind]
        moving = [i for i in chosen if order.lines[i].state is rule.source]
        there = [i for i in chosen if order.lines[i].state is rule.target]
        others = [i for i in chosen if i not in moving and i not in there]
        if operation.kind is Move.RELEASE and not named and (moving or there):
            others = []
        if others:
            return self._blocked(order, operation.kind, others)
        if not moving:
            return Verdict(Outcome.DONE, 1)
        if not self._move(order, moving, operation.kind, operation.reason):
            return Verdict(Outcome.KEY_FROZEN)
        return Verdict(Outcome.DONE)

    def _blocked(self, order: Order, kind: Move, positions: list[int]) -> Verdict:
        expired = any(
            order.lines[i].state is LineState.RELEASED and order.lines[i].reason == EXPIRED for i in positions
        )
        named_so = expired and kind in {Move.CONFIRM, Move.EXTEND}
        return Verdict(Outcome.HOLD_EXPIRED if named_so else Outcome.ILLEGAL_TRANSITION)

    def _move(self, order: Order, positions: list[int], kind: Move, reason: str) -> bool:
        """Move lines, or nothing if one of their keys is held."""
        if any(order.lines[i].key in self.frozen for i in positions):
            return False
        for i in positions:
            line = order.lines[i]
            self._change(line.key, kind, line.qty)
            line.state, line.reason = MOVES[kind].target, reason
        return True

    def _change(self, key: str, kind: Move, qty: int) -> None:
        balance = self.balances[key]
        balance.quantities = [n + s * qty for n, s in zip(balance.quantities, MOVES[kind].signs, strict=True)]
        balance.seq += 1

    def _request(self, operation: Operation) -> Verdict:
        [line] = operation.lines
        known = self.requests.get(operation.ref)
        if known:
            same = known[:2] == (operation.fingerprint, operation.kind)
            return Verdict(Outcome.DONE, 1) if same else Verdict(Outcome.REQUEST_CONFLICT)
        if line.inventory_key in self.frozen:
            return Verdict(Outcome.KEY_FROZEN)
        balance = self.balances[line.inventory_key]
        if operation.base_version not in {-1, balance.version}:
            return Verdict(Outcome.VERSION_CONFLICT)
        after = [n + s * line.qty for n, s in zip(balance.quantities, MOVES[operation.kind].signs, strict=True)]
        if min(after) < 0:
            return Verdict(Outcome.INSUFFICIENT_STOCK)
        balance.quantities, balance.seq, balance.version = after, balance.seq + 1, balance.version + 1
        if operation.kind is Move.ADJUST:
            balance.adjusted += line.qty
        view: list[object] = [line.inventory_key, *after, balance.seq, balance.version]
        self.requests[operation.ref] = (operation.fingerprint, operation.kind, view)
        return Verdict(Outcome.DONE)
