"""Every state of a line against every move, through the real script, and what each does to the quantities."""

from collections.abc import Callable

import pytest

from inventory.moves import EXPIRED, MOVES, ORDER_MOVES, LineState, Move, Quantities
from inventory.operations import Operation
from inventory.outcomes import Outcome
from tests.lua.shard import LONG_MS, PATH_TO, Shard, order_op, request_op, reserve

QTY = 3
STOCK = 10


def operation(kind: Move) -> Operation:
    if kind is Move.RESERVE:
        return reserve("order", a=QTY)
    return order_op(kind, "order", ttl_ms=2 * LONG_MS)


def in_state(shard: Shard, state: LineState) -> None:
    shard.stock(a=STOCK)
    for kind in PATH_TO[state]:
        assert shard.decide(operation(kind)).outcome is Outcome.DONE


def expected(state: LineState, kind: Move) -> Outcome:
    rule = MOVES[kind]
    if kind is Move.RESERVE and state not in {LineState.NONE, LineState.RESERVED}:
        return Outcome.ORDER_CLOSED
    if state in {rule.source, rule.target}:
        return Outcome.DONE
    return Outcome.UNKNOWN_ORDER if state is LineState.NONE else Outcome.ILLEGAL_TRANSITION


@pytest.mark.parametrize("kind", sorted(ORDER_MOVES), ids=lambda kind: kind.name)
@pytest.mark.parametrize("state", list(LineState), ids=lambda state: state.name)
@pytest.mark.parametrize("script", ["reserve", "settle"])
def test_a_move_does_what_the_table_says_and_nothing_else(
    shard: Shard, state: LineState, kind: Move, script: str
) -> None:
    if script == "settle" and kind is Move.RESERVE:
        return
    in_state(shard, state)
    before, image = shard.balance("a"), shard.image()
    rule = MOVES[kind]

    result = shard.decide(operation(kind), script=script)

    assert result.outcome is expected(state, kind)
    if result.outcome is Outcome.DONE and state is rule.source:
        assert (result.replay, result.wait) == (0, 1)
        after = Quantities(*(n + sign * QTY for n, sign in zip(before, rule.signs, strict=True)))
        assert shard.balance("a") == after
        change = shard.changes()[-1]
        event = change.events[0]
        assert (change.kind, event.state, event.qty, event.position) == (kind, rule.target, QTY, 1)
        deltas = Quantities(event.d_available, event.d_reserved, event.d_sold, event.d_consumed, event.d_locked)
        assert deltas == Quantities(*(sign * QTY for sign in rule.signs))
        assert Quantities(event.available, event.reserved, event.sold, event.consumed, event.locked) == after
        assert event.seq == shard.seq("a") == len(PATH_TO[state]) + 1
        assert result.order_view().lines[0].state == rule.target
    else:
        assert shard.image() == image, "a refusal or a replay leaves no trace"
        assert result.replay == (1 if result.outcome is Outcome.DONE else 0)
        if result.outcome is Outcome.ILLEGAL_TRANSITION:
            assert result.detail == [["a", state, ""]]


@pytest.mark.parametrize("kind", [Move.ADJUST, Move.LOCK, Move.UNLOCK], ids=lambda kind: kind.name)
def test_an_operators_change_moves_its_quantities_and_the_version(shard: Shard, kind: Move) -> None:
    assert shard.load_keys([["a", 10, 1, 2, 3, 4, 20, 6]]) == 1
    result = shard.decide(request_op(kind, "r1", "a", QTY))
    after = Quantities(*(n + s * QTY for n, s in zip((10, 1, 2, 3, 4), MOVES[kind].signs, strict=True)))
    assert (result.outcome, result.replay, result.wait) == (Outcome.DONE, 0, 1)
    view = result.balance_view()
    assert (view.inventory_key, view.seq, view.version) == ("a", 21, 7)
    assert Quantities(view.available, view.reserved, view.sold, view.consumed, view.locked) == after
    assert shard.balance("a") == after
    [change] = shard.changes()
    assert (change.kind, change.tenant, change.ref, change.actor, change.reason) == (
        kind,
        "shop",
        "r1",
        "ops",
        "counted",
    )
    assert (change.due_ms, change.buyer_id, change.line_count, change.open_lines) == (0, "", 0, 0)
    [event] = change.events
    assert (event.state, event.qty, event.position, event.seq, event.version) == (LineState.NONE, QTY, 0, 21, 7)


def test_settle_refuses_what_may_take_stock_before_it_decides_anything(shard: Shard) -> None:
    shard.stock(a=STOCK)
    shard.decide(reserve("order", a=1))
    image = shard.image()
    for taking in (reserve("other", a=1), request_op(Move.ADJUST, "r", "a", 1), request_op(Move.LOCK, "r", "a", 1)):
        with pytest.raises(Exception, match="does not take kind"):
            shard.call(order_op(Move.CONFIRM, "order"), taking, script="settle")
    assert shard.image() == image


def test_a_kind_that_is_none_is_an_error_of_the_call(shard: Shard) -> None:
    for kind in (Move.REJECTED, 5):
        operation = order_op(Move.READ, "order")
        operation.kind = kind  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(Exception, match="does not take kind"):
            shard.call(operation)


@pytest.mark.parametrize("kind", [Move.CONFIRM, Move.EXTEND, Move.RELEASE, Move.CONSUME, Move.RETURN, Move.RESERVE])
def test_every_operation_on_a_hold_past_due_applies_the_expiry_first(
    new_shard: Callable[[], Shard], kind: Move
) -> None:
    shard = new_shard()
    shard.stock(a=STOCK)
    shard.decide(reserve("order", ttl_ms=0, a=QTY))
    result = shard.decide(operation(kind))
    wanted = {
        Move.CONFIRM: Outcome.HOLD_EXPIRED,
        Move.EXTEND: Outcome.HOLD_EXPIRED,
        Move.RELEASE: Outcome.DONE,
        Move.RESERVE: Outcome.ORDER_CLOSED,
    }.get(kind, Outcome.ILLEGAL_TRANSITION)
    assert (result.outcome, result.wait) == (wanted, 1)
    assert result.replay == (1 if kind is Move.RELEASE else 0)
    assert shard.balance("a") == Quantities(STOCK, 0, 0, 0, 0)
    expiry = shard.changes()[-1]
    assert (expiry.kind, expiry.reason, expiry.actor, expiry.open_lines) == (Move.RELEASE, EXPIRED, "", 0)
    again = shard.image()
    assert shard.decide(operation(kind)).outcome is wanted, "swept or not, the answer is the same"
    assert shard.image() == again
