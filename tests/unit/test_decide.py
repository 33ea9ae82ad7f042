"""Deciding on MySQL's rows: every state against every move, and the rules that the scripts have for Redis' records."""

import pytest

from inventory.moves import EXPIRED, MOVES, ORDER_MOVES, LineState, Move, Quantities
from inventory.operations import Line, Operation
from inventory.outcomes import Outcome
from inventory.tables import BalanceRow
from kernel import limits
from tests.lua.shard import LONG_MS, PATH_TO, TENANT, order_op, request_op, reserve, reserve_all
from tests.rows_world import EPOCH, NOW_MS, RowsWorld

QTY = 3
STOCK = 10


@pytest.fixture
def world() -> RowsWorld:
    return RowsWorld()


def operation(kind: Move) -> Operation:
    if kind is Move.RESERVE:
        return reserve("order", a=QTY)
    return order_op(kind, "order", ttl_ms=2 * LONG_MS)


def in_state(world: RowsWorld, state: LineState) -> None:
    world.stock(a=STOCK)
    for kind in PATH_TO[state]:
        assert world.decide(operation(kind)).outcome is Outcome.DONE


def expected(state: LineState, kind: Move) -> Outcome:
    rule = MOVES[kind]
    if kind is Move.RESERVE and state not in {LineState.NONE, LineState.RESERVED}:
        return Outcome.ORDER_CLOSED
    if state in {rule.source, rule.target}:
        return Outcome.DONE
    return Outcome.UNKNOWN_ORDER if state is LineState.NONE else Outcome.ILLEGAL_TRANSITION


# --- the table of moves ---


@pytest.mark.parametrize("kind", sorted(ORDER_MOVES), ids=lambda kind: kind.name)
@pytest.mark.parametrize("state", list(LineState), ids=lambda state: state.name)
def test_a_move_does_what_the_table_says_and_nothing_else(world: RowsWorld, state: LineState, kind: Move) -> None:
    in_state(world, state)
    before, image = world.quantities("a"), world.image()
    rule = MOVES[kind]
    result = world.decide(operation(kind))
    assert (result.outcome, result.wait) == (expected(state, kind), 0)
    if result.outcome is Outcome.DONE and state is rule.source:
        assert result.replay == 0
        after = Quantities(*(n + sign * QTY for n, sign in zip(before, rule.signs, strict=True)))
        assert world.quantities("a") == after
        assert result.order_view().lines[0].state == rule.target
        [line] = result.order_view().lines
        assert (line.epoch, line.seq) == (EPOCH, len(PATH_TO[state]) + 1)
        ledger = world.ledger[-1]
        assert ledger[:5] == ("a", line.seq, 0, EPOCH, 0)
        assert (ledger[5], ledger[15:20]) == (kind, tuple(after))
    else:
        assert world.image() == image, "a refusal or a replay leaves no trace"
        assert result.replay == (1 if result.outcome is Outcome.DONE else 0)
        if result.outcome is Outcome.ILLEGAL_TRANSITION:
            assert result.detail == [["a", state, ""]]


@pytest.mark.parametrize("kind", [Move.ADJUST, Move.LOCK, Move.UNLOCK], ids=lambda kind: kind.name)
def test_an_operators_change_moves_its_quantities_and_the_version(world: RowsWorld, kind: Move) -> None:
    world.balances["a"] = BalanceRow(10, 1, 2, 3, 4, 20, 6, 0)
    result = world.decide(request_op(kind, "r1", "a", QTY))
    after = Quantities(*(n + s * QTY for n, s in zip((10, 1, 2, 3, 4), MOVES[kind].signs, strict=True)))
    assert (result.outcome, result.replay, result.detail) == (Outcome.DONE, 0, ["a", *after, 21, 7])
    assert world.quantities("a") == after
    again = world.decide(request_op(kind, "r1", "a", QTY))
    assert (again.outcome, again.replay, again.detail) == (Outcome.DONE, 1, result.detail)
    [change] = world.changes
    assert (change.kind, change.ref, change.actor, change.reason, change.due_ms) == (kind, "r1", "ops", "counted", 0)


@pytest.mark.parametrize("kind", [Move.CONFIRM, Move.EXTEND, Move.RELEASE, Move.CONSUME, Move.RETURN, Move.RESERVE])
def test_every_operation_on_a_hold_past_due_applies_the_expiry_first(world: RowsWorld, kind: Move) -> None:
    world.stock(a=STOCK)
    world.decide(reserve("order", ttl_ms=1, a=QTY))
    world.pass_time(1)
    result = world.decide(operation(kind))
    wanted = {
        Move.CONFIRM: Outcome.HOLD_EXPIRED,
        Move.EXTEND: Outcome.HOLD_EXPIRED,
        Move.RELEASE: Outcome.DONE,
        Move.RESERVE: Outcome.ORDER_CLOSED,
    }.get(kind, Outcome.ILLEGAL_TRANSITION)
    assert result.outcome is wanted
    assert result.replay == (1 if kind is Move.RELEASE else 0)
    assert world.quantities("a") == Quantities(STOCK, 0, 0, 0, 0)
    expiry = world.changes[-1]
    assert (expiry.kind, expiry.reason, expiry.actor, expiry.open_lines) == (Move.RELEASE, EXPIRED, "", 0)
    image = world.image()
    assert world.decide(operation(kind)).outcome is wanted, "swept or not, the answer is the same"
    assert world.image() == image


@pytest.mark.parametrize("kind", [Move.REJECTED, 5], ids=str)
def test_a_callers_bug_is_an_error_of_the_call_before_anything_is_decided(world: RowsWorld, kind: Move) -> None:
    world.stock(a=STOCK)
    wrong = order_op(kind, "order")
    with pytest.raises(ValueError, match="nothing to decide"):
        world.call(reserve("order", a=1), wrong)
    for empty in (reserve("order"), Operation(Move.LOCK, 0, TENANT, "r1")):
        with pytest.raises(ValueError, match="number of lines"):
            world.call(reserve("order", a=1), empty)
    assert not world.changes


# --- orders ---


def test_a_repeat_in_the_same_call_is_a_replay_and_each_result_shows_the_order_at_its_turn(world: RowsWorld) -> None:
    world.stock(a=5, b=5)
    results = world.call(
        reserve("o1", a=1, b=1),
        reserve("o1", a=1, b=1),
        order_op(Move.CONFIRM, "o1", "a"),
        order_op(Move.RELEASE, "o1"),
        order_op(Move.CONSUME, "o1", "a"),
    )
    assert [(r.outcome, r.replay) for r in results] == [(Outcome.DONE, n) for n in (0, 1, 0, 0, 0)]
    assert [[line.state for line in r.order_view().lines] for r in results] == [[1, 1], [1, 1], [2, 1], [2, 3], [4, 3]]
    assert world.quantities("a") == Quantities(4, 0, 0, 1, 0)


def test_the_last_unit_goes_to_the_first_of_one_call(world: RowsWorld) -> None:
    world.stock(a=1)
    results = world.call(*(reserve(f"o{i}", a=1, group=i) for i in range(4)))
    assert [r.outcome for r in results] == [Outcome.DONE] + 3 * [Outcome.INSUFFICIENT_STOCK]
    assert results[1].detail == [["a", 1, 0]]


def test_one_key_in_two_lines_is_counted_as_their_sum(world: RowsWorld) -> None:
    world.stock(a=5)
    op = reserve("o1", a=3)
    op.lines = [Line("a", 3), Line("a", 3)]
    refused = world.decide(op)
    assert (refused.outcome, refused.detail) == (Outcome.INSUFFICIENT_STOCK, [["a", 6, 5]])
    op.lines = [Line("a", 3), Line("a", 2)]
    assert world.decide(op).outcome is Outcome.DONE
    assert world.decide(order_op(Move.CONFIRM, "o1", "a")).outcome is Outcome.DONE
    assert world.quantities("a") == Quantities(0, 0, 5, 0, 0)


def test_grace_keeps_what_would_be_due(world: RowsWorld) -> None:
    world.stock(a=5)
    world.grace_until_ms = NOW_MS + 60_000
    result = world.decide(reserve("o1", a=1, ttl_ms=0))
    assert result.order_view().due_ms == NOW_MS + 60_000
    assert world.orders[TENANT, "o1"].due_ms == NOW_MS, "the stored due time is the buyer's own"
    assert world.decide(order_op(Move.EXPIRE, "o1")).replay == 1
    assert world.decide(order_op(Move.EXTEND, "o1", ttl_ms=1000)).replay == 1, "not beyond what it has anyway"
    world.pass_time(60_000)
    assert world.decide(order_op(Move.EXPIRE, "o1")).replay == 0


def test_extend_moves_the_due_time_forward_only(world: RowsWorld) -> None:
    world.stock(a=5, b=5)
    world.decide(reserve("o1", a=1, b=1))
    world.decide(order_op(Move.CONFIRM, "o1", "a"))
    assert world.decide(order_op(Move.EXTEND, "o1", ttl_ms=LONG_MS)).replay == 1
    moved = world.decide(order_op(Move.EXTEND, "o1", ttl_ms=2 * LONG_MS))
    assert (moved.outcome, moved.replay, moved.order_view().due_ms) == (Outcome.DONE, 0, NOW_MS + 2 * LONG_MS)
    assert world.orders[TENANT, "o1"].due_ms == NOW_MS + 2 * LONG_MS
    world.hold("b")
    frozen = world.decide(order_op(Move.EXTEND, "o1", ttl_ms=3 * LONG_MS))
    assert (frozen.outcome, frozen.detail) == (Outcome.KEY_FROZEN, ["b"])
    assert world.decide(order_op(Move.READ, "o1")).order_view().due_ms == NOW_MS + 2 * LONG_MS


# --- what MySQL lacks, holds, or has in part ---


def test_unknown_keys_are_named_before_held_ones_and_those_before_short_ones(world: RowsWorld) -> None:
    world.stock(a=5, b=5)
    world.hold("b")
    result = world.decide(reserve("o1", a=9, b=1, c=1, d=1))
    assert (result.outcome, result.detail) == (Outcome.UNKNOWN_INVENTORY_KEY, ["c", "d"])
    result = world.decide(reserve("o1", a=9, b=1))
    assert (result.outcome, result.detail) == (Outcome.KEY_FROZEN, ["b"])
    assert world.decide(reserve("o1", a=9)).outcome is Outcome.INSUFFICIENT_STOCK
    result = world.decide(request_op(Move.LOCK, "r1", "zz", 1))
    assert (result.outcome, result.detail) == (Outcome.UNKNOWN_INVENTORY_KEY, ["zz"])


@pytest.mark.parametrize("held", [1, 2, 3])
def test_a_held_key_stands_still_whoever_asks(world: RowsWorld, held: int) -> None:
    world.stock(a=5, b=5)
    world.decide(reserve("o1", a=1, b=1))
    world.decide(reserve("due", a=1, ttl_ms=0))
    world.hold("a", held)
    image = world.image()
    for op in (
        reserve("o2", b=1, a=1),
        order_op(Move.CONFIRM, "o1"),
        order_op(Move.RELEASE, "o1", "a"),
        order_op(Move.EXTEND, "o1", ttl_ms=2 * LONG_MS),
        order_op(Move.EXPIRE, "due"),
        order_op(Move.CONFIRM, "due"),
        request_op(Move.ADJUST, "r1", "a", 1),
    ):
        result = world.decide(op)
        assert (result.outcome, result.detail) == (Outcome.KEY_FROZEN, ["a"])
    read = world.decide(order_op(Move.READ, "due"))
    assert (read.outcome, read.order_view().lines[0].state) == (Outcome.DONE, LineState.RESERVED)
    assert world.decide(reserve("o1", a=1, b=1)).replay == 1
    assert world.image() == image
    assert world.decide(order_op(Move.CONFIRM, "o1", "b")).outcome is Outcome.DONE


def test_what_has_parked_changes_is_held_with_their_keys(world: RowsWorld) -> None:
    world.stock(a=5)
    world.decide(reserve("o1", a=1))
    world.decide(request_op(Move.LOCK, "r1", "a", 1))
    world.records.parked = {(TENANT, ref): ["a", "x"] for ref in ("o1", "new", "r1", "r2")}
    for op in (
        reserve("new", a=1),
        order_op(Move.READ, "o1"),
        order_op(Move.CONFIRM, "new"),
        request_op(Move.LOCK, "r1", "a", 1),
        request_op(Move.LOCK, "r2", "a", 1),
    ):
        result = world.decide(op)
        assert (result.outcome, result.detail) == (Outcome.KEY_FROZEN, ["a", "x"])


def test_an_order_in_part_and_a_request_without_its_ledger_row_are_lost(world: RowsWorld) -> None:
    world.stock(a=5, b=5)
    world.decide(reserve("gone", a=1, b=1))
    world.decide(reserve("other", a=1, b=1))
    world.decide(request_op(Move.LOCK, "r1", "a", 1))
    del world.lines[TENANT, "gone", 1]
    world.lines[TENANT, "other", 2] = world.lines[TENANT, "other", 2]._replace(state=LineState.CONFIRMED)
    world.records.requests[TENANT, "r1"] = world.records.requests[TENANT, "r1"]._replace(view=None)
    image = world.image()
    for ref in ("gone", "other"):
        for kind in (Move.READ, Move.CONFIRM, Move.EXPIRE, Move.EXTEND):
            result = world.decide(order_op(kind, ref))
            assert (result.outcome, result.detail) == (Outcome.LOST, [])
        assert world.decide(reserve(ref, a=1, b=1)).outcome is Outcome.LOST
    assert world.decide(request_op(Move.LOCK, "r1", "a", 1)).outcome is Outcome.LOST
    assert world.image() == image


def test_a_balance_that_holds_less_than_was_moved_there_is_lost_not_negative(world: RowsWorld) -> None:
    world.stock(a=5)
    world.decide(reserve("o1", a=3))
    world.balances["a"] = world.balances["a"]._replace(reserved=2)
    for kind in (Move.CONFIRM, Move.RELEASE):
        result = world.decide(order_op(kind, "o1"))
        assert (result.outcome, result.detail) == (Outcome.LOST, ["a"])
    del world.balances["a"]
    assert world.decide(order_op(Move.CONFIRM, "o1")).detail == ["a"]


# --- bounds ---


def test_one_call_walks_a_bounded_number_of_lines_and_leaves_the_rest_to_the_next(world: RowsWorld) -> None:
    qty = {f"k{i}": 1 for i in range(1000)}
    world.stock(**dict.fromkeys(qty, 100))
    for i in range(8):
        assert world.decide(reserve_all(f"o{i}", qty)).outcome is Outcome.DONE
    confirms = [order_op(Move.CONFIRM, f"o{i}", group=i) for i in range(8)]
    assert [r.outcome for r in world.call(*confirms)] == 4 * [Outcome.DONE] + 4 * [Outcome.SKIPPED]
    assert [r.outcome for r in world.call(*confirms[4:])] == 4 * [Outcome.DONE]
    # A new order counts as often as it is named.
    again = world.call(reserve_all("n", qty), *(order_op(Move.READ, "n", group=i) for i in range(5)))
    assert [r.outcome for r in again] == 4 * [Outcome.DONE] + 2 * [Outcome.SKIPPED]


@pytest.mark.parametrize("qty", [0, -1, limits.QTY_MAX + 1, 2**53])
def test_a_quantity_out_of_range_takes_nothing(world: RowsWorld, qty: int) -> None:
    world.stock(a=5)
    result = world.decide(reserve("o1", a=qty))
    assert (result.outcome, result.detail) == (Outcome.QUANTITY_LIMIT, ["a"])


def test_the_total_stays_in_the_exact_range(world: RowsWorld) -> None:
    top = limits.QUANTITY_TOTAL_MAX
    world.balances["a"] = BalanceRow(top - 10, 1, 2, 3, 0, 0, 0, 0)
    for delta in (5, top, top + 1, 2**60, -(2**60)):
        result = world.decide(request_op(Move.ADJUST, f"r{delta}", "a", delta))
        assert (result.outcome, result.detail) == (Outcome.QUANTITY_LIMIT, ["a"])
    assert world.decide(request_op(Move.ADJUST, "r1", "a", 4)).outcome is Outcome.DONE
    assert world.decide(request_op(Move.LOCK, "r2", "a", top - 6)).outcome is Outcome.DONE
    assert world.decide(request_op(Move.LOCK, "r3", "a", 0)).outcome is Outcome.QUANTITY_LIMIT
    stale = world.decide(request_op(Move.ADJUST, "r4", "a", 1, base_version=1))
    assert (stale.outcome, stale.detail) == (Outcome.VERSION_CONFLICT, [2])
    short = world.decide(request_op(Move.UNLOCK, "r5", "a", top))
    assert (short.outcome, short.detail) == (Outcome.INSUFFICIENT_STOCK, [["a", top, top - 6]])
