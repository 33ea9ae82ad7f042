"""The demo's own record of what it asked and what it was told, and the verdict that follows from it alone.

Pure. The server's audit is asked too, but whether something was lost or oversold is computed here, from the caller's side.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class OrderHistory:
    """What one order was told. Times are seconds of one monotonic clock of the demo; `None` = never.

    `held_from` is when the first 2xx of its reserve arrived; `held_until` when something that may end the hold was first
    asked (release, return), or when the hold may have expired. In between the stock is certainly this order's.
    """

    lines: dict[str, int]
    reserved: bool = False
    refused: str = ""
    """Code of the refusal of its reserve."""
    confirmed: bool = False
    released: bool = False
    consumed: bool = False
    returned: set[str] = field(default_factory=set[str])
    held_from: float | None = None
    held_until: float | None = None
    unknown: list[str] = field(default_factory=list[str])
    """Calls whose outcome stayed unknown to the end of their deadline."""
    unexecuted: list[str] = field(default_factory=list[str])
    """Calls that certainly did nothing before their deadline."""
    abandoned: bool = False
    """The hold was left to expire."""


@dataclass(slots=True)
class Verdict:
    """What the history proves. Each entry is a sentence for a person."""

    lost: list[str] = field(default_factory=list[str])
    oversold: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])
    """Answers that contradict each other in another way."""


def expected_states(order: OrderHistory) -> dict[str, frozenset[str]]:
    """The states in which each line may be at the end, as far as the answers decide it."""
    if order.unknown:
        return {}
    states: dict[str, frozenset[str]] = {}
    for key in order.lines:
        if key in order.returned:
            states[key] = frozenset({"RETURNED"})
        elif order.consumed:
            states[key] = frozenset({"CONSUMED"})
        elif order.confirmed:
            states[key] = frozenset({"CONFIRMED"})
        elif order.released or order.abandoned:
            states[key] = frozenset({"RELEASED"})
        else:
            states[key] = frozenset({"RESERVED", "RELEASED"})
    return states


def judge(
    orders: Mapping[str, OrderHistory],
    final: Mapping[str, Mapping[str, str] | None],
    stock: Mapping[str, int],
    balances: Mapping[str, Mapping[str, int]],
) -> Verdict:
    """Compare the history with the final state of every order and key.

    `final` maps an order to its lines' statuses, None where the server does not know it. `stock` is what was put in, less
    what was written off, per key. `balances` are the five quantities of each key.
    """
    verdict = Verdict()
    alive: dict[str, int] = defaultdict(int)
    quantities: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    column = {"RESERVED": "reserved", "CONFIRMED": "sold", "CONSUMED": "consumed"}
    for order_id, order in orders.items():
        lines = final.get(order_id)
        if lines is None:
            if order.reserved:
                verdict.lost.append(f"{order_id}: was told RESERVED and is unknown now")
            continue
        if order.refused and not order.unknown:
            verdict.wrong.append(f"{order_id}: was refused ({order.refused}) and exists")
        if set(lines) != set(order.lines):
            verdict.lost.append(f"{order_id}: asked for {len(order.lines)} lines and has {len(lines)}")
        for key, allowed in expected_states(order).items():
            if lines.get(key) not in allowed:
                verdict.lost.append(f"{order_id}: {key} is {lines.get(key)}, told {'/'.join(sorted(allowed))}")
        for key, state in lines.items():
            if state in column:
                quantities[key][column[state]] += order.lines.get(key, 0)
                alive[key] += order.lines.get(key, 0)
    for key, units in stock.items():
        if alive[key] > units:
            verdict.oversold.append(f"{key}: {alive[key]} units promised of {units}")
        balance = balances.get(key)
        if balance is None:
            verdict.lost.append(f"{key}: the server does not know the key any more")
            continue
        expected = {
            "available": units - alive[key],
            **{name: quantities[key][name] for name in ("reserved", "sold", "consumed")},
        }
        for name, value in expected.items():
            if balance[name] != value:
                verdict.wrong.append(f"{key}: {name} is {balance[name]}, the orders say {value}")
    verdict.oversold.extend(_overlaps(orders, stock))
    return verdict


def _overlaps(orders: Mapping[str, OrderHistory], stock: Mapping[str, int]) -> list[str]:
    """Keys of which, at some moment, more was certainly held than there was."""
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for order in orders.values():
        if order.held_from is None:
            continue
        until = order.held_until if order.held_until is not None else float("inf")
        if until <= order.held_from:
            continue
        for key, qty in order.lines.items():
            changes[key].append((order.held_from, qty))
            changes[key].append((until, -qty))
    found: list[str] = []
    for key, moments in changes.items():
        held = highest = 0
        # At one instant, ends come before beginnings: only what certainly overlaps counts.
        for _, qty in sorted(moments):
            held += qty
            highest = max(highest, held)
        if highest > stock.get(key, 0):
            found.append(f"{key}: {highest} units held at one moment of {stock.get(key, 0)}")
    return found
