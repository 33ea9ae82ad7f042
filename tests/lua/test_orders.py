"""Rules of orders: replays, conflicts, expiry and grace, lines, proof, groups, bounds."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from redis.exceptions import ResponseError

from inventory import events
from inventory.moves import EXPIRED, LineState, Move, Quantities
from inventory.operations import Line
from inventory.outcomes import CallStatus, Outcome
from kernel import limits
from tests.lua.shard import LONG_MS, TENANT, Shard, order_op, pack, request_op, reserve, reserve_all

PAST = 1


def states(shard: Shard, ref: str) -> list[int]:
    return [line.state for line in shard.decide(order_op(Move.READ, ref)).order_view().lines]


def member(ref: str) -> bytes:
    return f"o:{TENANT}/{ref}".encode()


# --- reserve ---


def test_a_reserve_takes_all_lines_and_says_where_they_stand(shard: Shard) -> None:
    shard.stock(a=5, b=7)
    before_ms = int(time.time() * 1000)
    reply = shard.call(reserve("o1", a=2, b=3, buyer="anna"))
    [result] = reply.results
    view = result.order_view()
    assert (result.outcome, result.replay, result.wait) == (Outcome.DONE, 0, 1)
    assert view.buyer_id == "anna"
    assert abs(view.due_ms - before_ms - LONG_MS) < 5_000
    assert [tuple(msgspec.to_builtins(line)) for line in view.lines] == [
        ("a", 2, LineState.RESERVED, "", 1, 1),
        ("b", 3, LineState.RESERVED, "", 1, 1),
    ]
    assert (reply.m, reply.confirmed_m) == (1, 0)
    [(m, digest, payload, appended)] = shard.entries()
    assert (m, digest, appended) == (1, reply.digest, len(payload))
    assert digest == events.chain(shard.genesis, payload)
    [change] = events.decode_changes(payload)
    assert (change.kind, change.tenant, change.ref, change.buyer_id) == (Move.RESERVE, TENANT, "o1", "anna")
    assert (change.line_count, change.open_lines, change.due_ms) == (2, 2, view.due_ms)
    assert change.at_ms == change.created_ms == reply.now_ms
    assert (change.trace_id, change.actor, change.fingerprint) == ("trace", "web", reserve("o1", a=2, b=3).fingerprint)
    assert [(e.inventory_key, e.position, e.qty) for e in change.events] == [("a", 1, 2), ("b", 2, 3)]
    assert shard.client.zscore(shard.names.due, member("o1")) == view.due_ms
    assert shard.client.zscore(shard.names.settled, member("o1")) is None


def test_short_stock_takes_nothing_and_lists_only_what_is_short(shard: Shard) -> None:
    shard.stock(a=5, b=1, c=0)
    image = shard.image()
    result = shard.decide(reserve("o1", a=5, b=2, c=1))
    assert result.outcome is Outcome.INSUFFICIENT_STOCK
    assert result.detail == [["b", 2, 1], ["c", 1, 0]]
    assert shard.image() == image


def test_one_key_in_two_lines_is_counted_as_their_sum(shard: Shard) -> None:
    shard.stock(a=5)
    operation = reserve("o1", a=3)
    operation.lines = [Line("a", 3), Line("a", 3)]
    assert shard.decide(operation).outcome is Outcome.INSUFFICIENT_STOCK
    operation.lines = [Line("a", 3), Line("a", 2)]
    assert shard.decide(operation).outcome is Outcome.DONE
    assert shard.balance("a") == Quantities(0, 5, 0, 0, 0)
    assert shard.decide(order_op(Move.CONFIRM, "o1", "a")).outcome is Outcome.DONE
    assert shard.balance("a") == Quantities(0, 0, 5, 0, 0)


def test_the_last_unit_goes_to_the_first_of_one_call(shard: Shard) -> None:
    shard.stock(a=1)
    reply = shard.call(*(reserve(f"o{i}", a=1, group=i) for i in range(4)))
    assert [r.outcome for r in reply.results] == [Outcome.DONE] + 3 * [Outcome.INSUFFICIENT_STOCK]
    assert shard.balance("a") == Quantities(0, 1, 0, 0, 0)


def test_a_repeat_is_a_replay_while_the_order_is_open(shard: Shard) -> None:
    shard.stock(a=5)
    first = shard.decide(reserve("o1", a=2, buyer="anna"))
    image = shard.image()
    for repeat in (
        reserve("o1", a=2, buyer="anna"),
        reserve("o1", a=2),
        reserve("o1", a=2, buyer="anna", ttl_ms=1),
        reserve("o1", a=2, buyer="anna", proof=-1),
    ):
        again = shard.decide(repeat)
        assert (again.outcome, again.replay, again.wait) == (Outcome.DONE, 1, 1)
        assert again.detail == first.detail
    shard.confirm_all()
    assert shard.decide(reserve("o1", a=2)).wait == 0, "nothing to wait for once the entry is confirmed"
    assert {k: v for k, v in shard.image().items() if k != shard.names.head.encode()} == {
        k: v for k, v in image.items() if k != shard.names.head.encode()
    }


def test_a_repeat_in_the_same_call_is_a_replay(shard: Shard) -> None:
    shard.stock(a=5)
    reply = shard.call(reserve("o1", a=2, group=1), reserve("o1", a=2, group=2))
    assert [(r.outcome, r.replay, r.wait) for r in reply.results] == [(Outcome.DONE, 0, 1), (Outcome.DONE, 1, 1)]
    assert shard.balance("a") == Quantities(3, 2, 0, 0, 0)
    assert len(shard.changes()) == 1


def test_other_lines_or_another_buyer_are_a_conflict_that_shows_the_order(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    shard.decide(reserve("o1", a=2, buyer="anna"))
    for other in (reserve("o1", a=3, buyer="anna"), reserve("o1", a=2, b=1), reserve("o1", a=2, buyer="bert")):
        result = shard.decide(other)
        assert (result.outcome, result.wait) == (Outcome.ORDER_CONFLICT, 1)
        assert result.order_view().lines[0].qty == 2


@pytest.mark.parametrize("qty", [0, -1, limits.QTY_MAX + 1, 2**53])
def test_a_quantity_out_of_range_takes_nothing(shard: Shard, qty: int) -> None:
    shard.stock(a=5)
    result = shard.decide(reserve("o1", a=qty))
    assert (result.outcome, result.detail) == (Outcome.QUANTITY_LIMIT, ["a"])
    assert shard.balance("a") == Quantities(5, 0, 0, 0, 0)


def test_an_order_without_lines_is_an_error_of_the_call(shard: Shard) -> None:
    with pytest.raises(ResponseError, match="number of lines"):
        shard.call(reserve("o1"))


def test_a_thousand_lines_are_one_order(shard: Shard) -> None:
    qty = {f"key {i}": 1 + i % 3 for i in range(limits.LINES_PER_ORDER_MAX)}
    assert shard.load_keys([[key, 3, 0, 0, 0, 0, 0, 0] for key in qty]) == len(qty)
    result = shard.decide(reserve_all("big", qty))
    assert result.outcome is Outcome.DONE
    assert [(line.inventory_key, line.qty) for line in result.order_view().lines] == list(qty.items())
    assert shard.client.hlen(shard.names.order(TENANT, "big")) == len(qty) + 1
    assert shard.decide(order_op(Move.CONFIRM, "big", "key 7")).outcome is Outcome.DONE
    assert shard.decide(order_op(Move.CONFIRM, "big")).outcome is Outcome.DONE
    assert set(states(shard, "big")) == {LineState.CONFIRMED}
    assert [len(change.events) for change in shard.changes()] == [1000, 1, 999]
    for key, n in qty.items():
        assert shard.balance(key) == Quantities(3 - n, 0, n, 0, 0)


# --- some lines of an order ---


def test_a_move_of_some_lines_leaves_the_others(shard: Shard) -> None:
    shard.stock(a=5, b=5, c=5)
    shard.decide(reserve("o1", a=1, b=2, c=3))
    assert shard.decide(order_op(Move.CONFIRM, "o1", "b")).outcome is Outcome.DONE
    assert states(shard, "o1") == [LineState.RESERVED, LineState.CONFIRMED, LineState.RESERVED]
    [event] = shard.changes()[-1].events
    assert (event.inventory_key, event.position, event.qty) == ("b", 2, 2)
    assert shard.changes()[-1].open_lines == 2
    assert shard.client.zscore(shard.names.due, member("o1")) is not None

    again = shard.decide(order_op(Move.CONFIRM, "o1", "b"))
    assert (again.outcome, again.replay) == (Outcome.DONE, 1)
    some_done = shard.decide(order_op(Move.CONFIRM, "o1", "a", "b"))
    assert (some_done.outcome, some_done.replay) == (Outcome.DONE, 0)
    assert [e.inventory_key for e in shard.changes()[-1].events] == ["a"]

    assert shard.decide(order_op(Move.RELEASE, "o1", reason="cancelled")).outcome is Outcome.DONE
    assert states(shard, "o1") == [LineState.CONFIRMED, LineState.CONFIRMED, LineState.RELEASED]
    assert shard.client.zscore(shard.names.due, member("o1")) is None
    assert shard.client.zscore(shard.names.settled, member("o1")) is not None
    replay = shard.decide(order_op(Move.RELEASE, "o1", reason="risk"))
    assert (replay.outcome, replay.replay) == (Outcome.DONE, 1)
    assert replay.order_view().lines[2].reason == "cancelled"


def test_each_result_of_a_call_shows_the_order_as_it_was_at_its_turn(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    reply = shard.call(
        reserve("o1", a=1, b=1),
        order_op(Move.READ, "o1"),
        order_op(Move.CONFIRM, "o1", "a"),
        order_op(Move.RELEASE, "o1"),
    )
    assert [[line.state for line in result.order_view().lines] for result in reply.results] == [
        [LineState.RESERVED, LineState.RESERVED],
        [LineState.RESERVED, LineState.RESERVED],
        [LineState.CONFIRMED, LineState.RESERVED],
        [LineState.CONFIRMED, LineState.RELEASED],
    ]
    assert [line.seq for line in reply.results[0].order_view().lines] == [1, 1]


def test_an_unknown_line_moves_nothing(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    shard.decide(reserve("o1", a=1))
    image = shard.image()
    result = shard.decide(order_op(Move.CONFIRM, "o1", "a", "b", "zz"))
    assert (result.outcome, result.detail) == (Outcome.UNKNOWN_LINE, ["b", "zz"])
    assert shard.image() == image


def test_one_line_in_the_way_stops_the_whole_move(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    shard.decide(reserve("o1", a=1, b=1))
    shard.decide(order_op(Move.RELEASE, "o1", "a", reason="risk"))
    image = shard.image()
    result = shard.decide(order_op(Move.CONFIRM, "o1"))
    assert (result.outcome, result.detail) == (Outcome.ILLEGAL_TRANSITION, [["a", LineState.RELEASED, "risk"]])
    assert shard.decide(order_op(Move.CONSUME, "o1", "b")).detail == [["b", LineState.RESERVED, ""]]
    assert shard.image() == image
    assert shard.decide(order_op(Move.CONFIRM, "o1", "b")).outcome is Outcome.DONE


def test_releasing_an_order_that_has_nothing_to_release_is_illegal(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    shard.decide(reserve("o1", a=1, b=1))
    shard.decide(order_op(Move.CONFIRM, "o1"))
    result = shard.decide(order_op(Move.RELEASE, "o1"))
    assert result.outcome is Outcome.ILLEGAL_TRANSITION
    assert [row[0] for row in result.detail] == ["a", "b"]


def test_reserving_again_is_a_replay_while_one_line_is_held_and_closed_after(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    shard.decide(reserve("o1", a=1, b=1))
    shard.decide(order_op(Move.CONFIRM, "o1", "a"))
    result = shard.decide(reserve("o1", a=1, b=1))
    assert (result.outcome, result.replay) == (Outcome.DONE, 1)
    shard.decide(order_op(Move.RELEASE, "o1"))
    assert shard.decide(reserve("o1", a=1, b=1)).outcome is Outcome.ORDER_CLOSED


def test_an_order_of_another_tenant_is_unknown(shard: Shard) -> None:
    shard.stock(a=5)
    shard.decide(reserve("o1", a=1))
    foreign = order_op(Move.CONFIRM, "o1")
    foreign.tenant = "other"
    assert shard.decide(foreign).outcome is Outcome.UNKNOWN_ORDER


# --- time ---


def test_expiry_releases_what_is_held_and_leaves_what_is_sold(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    shard.decide(reserve("o1", a=1, b=2))
    shard.decide(order_op(Move.CONFIRM, "o1", "a"))
    make_due(shard, "o1")
    result = shard.decide(order_op(Move.EXPIRE, "o1"))
    assert (result.outcome, result.replay, result.wait) == (Outcome.DONE, 0, 1)
    assert [(line.state, line.reason) for line in result.order_view().lines] == [
        (LineState.CONFIRMED, ""),
        (LineState.RELEASED, EXPIRED),
    ]
    again = shard.decide(order_op(Move.EXPIRE, "o1"))
    assert (again.outcome, again.replay) == (Outcome.DONE, 1)
    # The line that was sold in time can go on; the one that was not cannot come back.
    assert shard.decide(order_op(Move.CONSUME, "o1", "a")).outcome is Outcome.DONE
    assert shard.decide(order_op(Move.CONFIRM, "o1", "b")).outcome is Outcome.HOLD_EXPIRED


def make_due(shard: Shard, ref: str) -> None:
    """Let an order's due time have passed."""
    record = shard.names.order(TENANT, ref)
    h = msgspec.msgpack.decode(shard.client.hget(record, "h"))
    h[1] = PAST
    shard.client.hset(record, "h", pack(h))
    shard.client.zadd(shard.names.due, {member(ref): PAST})


def test_expire_before_the_due_time_changes_nothing(shard: Shard) -> None:
    shard.stock(a=5)
    shard.decide(reserve("o1", a=1))
    image = shard.image()
    result = shard.decide(order_op(Move.EXPIRE, "o1"), term=shard.term)
    assert (result.outcome, result.replay) == (Outcome.DONE, 1)
    assert shard.image() == image


def test_reading_applies_the_expiry_and_waits_for_it(shard: Shard) -> None:
    shard.stock(a=5)
    shard.decide(reserve("o1", a=1, ttl_ms=0))
    shard.confirm_all()
    reply = shard.call(order_op(Move.READ, "o1"))
    assert (reply.m, reply.results[0].wait) == (2, 1)
    assert reply.results[0].order_view().lines[0].state == LineState.RELEASED
    shard.confirm_all()
    assert shard.decide(order_op(Move.READ, "o1")).wait == 0


def test_grace_after_opening_keeps_what_would_be_due(client: Any, new_shard: Callable[[], Shard]) -> None:
    number = new_shard().number
    shard = Shard(client, number, epoch=2)
    shard.open(grace_ms=60_000)
    shard.stock(a=5)
    result = shard.decide(reserve("o1", a=1, ttl_ms=0))
    assert result.order_view().due_ms == shard.head("opened_ms") + 60_000
    assert shard.changes()[-1].due_ms == shard.changes()[-1].at_ms, "the stored due time is the buyer's own"
    assert shard.decide(order_op(Move.EXPIRE, "o1")).replay == 1
    assert shard.decide(order_op(Move.EXTEND, "o1", ttl_ms=1000)).replay == 1, "not beyond what it has anyway"
    assert shard.decide(order_op(Move.CONFIRM, "o1")).outcome is Outcome.DONE


def test_extend_moves_the_due_time_forward_only(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    first = shard.decide(reserve("o1", a=1, b=1)).order_view()
    shard.decide(order_op(Move.CONFIRM, "o1", "a"))
    same = shard.decide(order_op(Move.EXTEND, "o1", ttl_ms=1))
    assert (same.outcome, same.replay) == (Outcome.DONE, 1)
    moved = shard.decide(order_op(Move.EXTEND, "o1", ttl_ms=2 * LONG_MS))
    due_ms = moved.order_view().due_ms
    assert (moved.outcome, moved.replay, moved.wait) == (Outcome.DONE, 0, 1)
    assert due_ms >= first.due_ms + LONG_MS
    assert shard.client.zscore(shard.names.due, member("o1")) == due_ms
    change = shard.changes()[-1]
    assert (change.kind, change.due_ms) == (Move.EXTEND, due_ms)
    assert [(e.inventory_key, e.state, e.d_available, e.d_reserved) for e in change.events] == [
        ("b", LineState.RESERVED, 0, 0)
    ]
    shard.decide(order_op(Move.RELEASE, "o1"))
    closed = shard.decide(order_op(Move.EXTEND, "o1", ttl_ms=3 * LONG_MS))
    assert closed.outcome is Outcome.ILLEGAL_TRANSITION
    assert len(closed.detail) == 2


def test_a_refused_extend_leaves_the_due_time(shard: Shard) -> None:
    shard.stock(a=5)
    due_ms = shard.decide(reserve("o1", a=1)).order_view().due_ms
    shard.freeze(1, "a")
    reply = shard.call(order_op(Move.EXTEND, "o1", ttl_ms=2 * LONG_MS), order_op(Move.READ, "o1"))
    assert reply.results[0].outcome is Outcome.KEY_FROZEN
    assert reply.results[1].order_view().due_ms == due_ms


# --- unknown, lost, held ---


def test_unknown_to_redis_is_not_unknown_without_a_fresh_proof(shard: Shard) -> None:
    shard.stock(a=5)
    for kind in (Move.CONFIRM, Move.READ, Move.EXPIRE, Move.EXTEND):
        assert shard.decide(order_op(kind, "o1", proof=-1)).outcome is Outcome.NEED_LOOKUP
        assert shard.decide(order_op(kind, "o1", proof=0)).outcome is Outcome.UNKNOWN_ORDER
    assert shard.decide(reserve("o1", a=1, proof=-1)).outcome is Outcome.NEED_LOOKUP
    assert shard.decide(reserve("o1", a=1, proof=0)).outcome is Outcome.DONE

    shard.decide(order_op(Move.RELEASE, "o1"))
    assert shard.evict(2) == 1
    assert shard.head("evicted_m") == 2
    assert shard.decide(reserve("o1", a=1, proof=1)).outcome is Outcome.NEED_LOOKUP, "SELECTed before it was there"
    assert shard.decide(reserve("o2", a=1, proof=1)).outcome is Outcome.NEED_LOOKUP
    assert shard.decide(reserve("o2", a=1, proof=2)).outcome is Outcome.DONE


def test_keys_that_are_not_loaded_are_named_all_and_nothing_is_taken(shard: Shard) -> None:
    shard.stock(a=5)
    image = shard.image()
    result = shard.decide(reserve("o1", a=1, b=1, c=9))
    assert (result.outcome, result.detail) == (Outcome.NOT_LOADED, ["b", "c"])
    assert shard.image() == image


def test_what_is_opened_and_absent_is_lost(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    shard.client.delete(shard.names.balance("b"))
    result = shard.decide(reserve("o1", a=1, b=1, c=1))
    assert (result.outcome, result.detail) == (Outcome.LOST, ["b"])
    assert shard.read_keys("a", "b", "c")[1][1][0] == 2


@pytest.mark.parametrize("field", ["available", "reserved", "locked", "seq", "version"])
@pytest.mark.parametrize("value", ["", "abc", "-1", "1.5", "inf", "nan", str(2**53), "99999999999999999999"])
def test_a_damaged_number_is_lost_and_harms_no_other_operation(shard: Shard, field: str, value: str) -> None:
    shard.stock(a=5, b=5)
    shard.client.hset(shard.names.balance("a"), field, value)
    reply = shard.call(
        reserve("o1", a=1, group=1), reserve("o2", b=1, group=2), request_op(Move.LOCK, "r", "a", 1, group=3)
    )
    assert [r.outcome for r in reply.results] == [Outcome.LOST, Outcome.DONE, Outcome.LOST]
    assert reply.results[0].detail == ["a"]


def test_any_damage_to_a_record_is_lost_and_harms_no_other_operation(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    names, client = shard.names, shard.client
    damages = {
        "gone header": lambda name: client.hdel(name, "h"),
        "no msgpack": lambda name: client.hset(name, "h", b"\xc1\xff"),
        "other shape": lambda name: client.hset(name, "h", pack([1, 2])),
        "other types": lambda name: client.hset(name, "h", pack([1, 2, 3, 4, 5, 6])),
        "gone line": lambda name: client.hdel(name, "l:1"),
        "bad line": lambda name: client.hset(name, "l:1", pack("x")),
        "a string": shard.raise_with,
    }
    for n, (what, damage) in enumerate(damages.items()):
        shard.decide(reserve(f"bad{n}", a=1, b=1))
        damage(names.order(TENANT, f"bad{n}"))
        for kind in (Move.CONFIRM, Move.READ, Move.EXPIRE, Move.EXTEND):
            reply = shard.call(
                order_op(kind, f"bad{n}", group=1),
                reserve(f"bad{n}", a=1, b=1, group=3),
                order_op(Move.READ, "missing", group=2),
            )
            assert [r.outcome for r in reply.results] == [Outcome.LOST, Outcome.LOST, Outcome.UNKNOWN_ORDER], what


def test_a_balance_of_another_type_is_lost(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    shard.decide(reserve("o1", a=1))
    shard.raise_with(shard.names.balance("a"))
    reply = shard.call(order_op(Move.CONFIRM, "o1", group=1), reserve("o2", b=1, group=2))
    assert [r.outcome for r in reply.results] == [Outcome.LOST, Outcome.DONE]


def test_a_balance_that_holds_less_than_was_moved_there_is_lost_not_negative(shard: Shard) -> None:
    shard.stock(a=5)
    shard.decide(reserve("o1", a=3))
    shard.client.hset(shard.names.balance("a"), "reserved", 2)
    image = shard.image()
    for kind in (Move.CONFIRM, Move.RELEASE):
        result = shard.decide(order_op(kind, "o1"))
        assert (result.outcome, result.detail) == (Outcome.LOST, ["a"])
    assert shard.image() == image


@pytest.mark.parametrize("name", ["log", "due", "settled"])
def test_a_damaged_name_of_the_shard_loses_everything_and_writes_nothing(shard: Shard, name: str) -> None:
    shard.stock(a=5)
    shard.decide(reserve("o1", a=1))
    shard.raise_with(getattr(shard.names, name))
    image = shard.image()
    reply = shard.call(order_op(Move.CONFIRM, "o1"), reserve("o2", a=1), order_op(Move.READ, "o1"))
    assert [r.outcome for r in reply.results] == 3 * [Outcome.LOST]
    assert shard.image() == image


def test_a_log_that_is_ahead_of_the_head_is_an_error_and_writes_nothing(shard: Shard) -> None:
    shard.stock(a=5)
    shard.client.xadd(shard.names.log, {"d": "x"}, id="9-0")
    image = shard.image()
    with pytest.raises(ResponseError, match="equal or smaller"):
        shard.call(reserve("o1", a=1))
    assert shard.image() == image


def test_a_held_key_stands_still_whoever_asks(shard: Shard) -> None:
    shard.stock(a=5, b=5)
    shard.decide(reserve("o1", a=1, b=1))
    shard.decide(reserve("due", a=1, ttl_ms=0))
    assert shard.freeze(1, "a") == 1
    image = shard.image()
    for operation in (
        reserve("o2", b=1, a=1),
        order_op(Move.CONFIRM, "o1"),
        order_op(Move.RELEASE, "o1", "a"),
        order_op(Move.EXTEND, "o1", ttl_ms=2 * LONG_MS),
        order_op(Move.EXPIRE, "due"),
        order_op(Move.CONFIRM, "due"),
        request_op(Move.ADJUST, "r1", "a", 1),
    ):
        result = shard.decide(operation)
        assert (result.outcome, result.detail) == (Outcome.KEY_FROZEN, ["a"])
    read = shard.decide(order_op(Move.READ, "due"))
    assert read.outcome is Outcome.DONE, "reading tells what is there"
    assert read.order_view().lines[0].state == LineState.RESERVED
    assert shard.decide(reserve("o1", a=1, b=1)).replay == 1
    assert shard.image() == image
    assert shard.decide(order_op(Move.CONFIRM, "o1", "b")).outcome is Outcome.DONE
    assert shard.freeze(0, "a") == 1
    assert shard.decide(order_op(Move.CONFIRM, "o1")).outcome is Outcome.DONE


def test_expiry_needs_its_keys_and_changes_nothing_without(shard: Shard) -> None:
    shard.load_keys([["a", 5, 1, 0, 0, 0, 3, 0]])
    line = ["zz", 2, LineState.RESERVED, "", 0, 4]
    assert shard.load_orders(0, [[TENANT, "o1", "f" * 16, PAST, "", PAST, 2, [["a", 1, 1, "", 0, 3], line]]]) == 1
    image = shard.image()
    for kind in (Move.READ, Move.EXPIRE, Move.CONFIRM, Move.RESERVE):
        operation = reserve("o1", a=1) if kind is Move.RESERVE else order_op(kind, "o1")
        result = shard.decide(operation)
        assert (result.outcome, result.detail) == (Outcome.NOT_LOADED, ["zz"])
    assert shard.image() == image


# --- groups and bounds ---


def test_what_follows_a_blocked_operation_of_its_group_is_skipped_and_other_groups_go_on(shard: Shard) -> None:
    shard.stock(a=5)
    reply = shard.call(
        reserve("o1", a=1, group=1),
        reserve("o2", b=1, group=1),
        order_op(Move.CONFIRM, "o1", group=1),
        order_op(Move.CONFIRM, "o1", group=2),
        reserve("o3", a=1, proof=-1, group=3),
        order_op(Move.READ, "o1", group=3),
        reserve("o4", a=9, group=4),
        order_op(Move.READ, "o1", group=4),
    )
    assert [r.outcome for r in reply.results] == [
        Outcome.DONE,
        Outcome.NOT_LOADED,
        Outcome.SKIPPED,
        Outcome.DONE,
        Outcome.NEED_LOOKUP,
        Outcome.SKIPPED,
        Outcome.INSUFFICIENT_STOCK,
        Outcome.DONE,
    ]


def test_one_call_walks_a_bounded_number_of_lines_and_leaves_the_rest_to_the_next(shard: Shard) -> None:
    qty = {f"k{i}": 1 for i in range(1000)}
    shard.load_keys([[key, 100, 0, 0, 0, 0, 0, 0] for key in qty])
    for i in range(8):
        assert shard.decide(reserve_all(f"o{i}", qty)).outcome is Outcome.DONE
    confirms = [order_op(Move.CONFIRM, f"o{i}", group=i) for i in range(8)]
    reply = shard.call(*confirms)
    assert [r.outcome for r in reply.results] == 4 * [Outcome.DONE] + 4 * [Outcome.SKIPPED]
    reply = shard.call(*confirms[4:])
    assert [r.outcome for r in reply.results] == 4 * [Outcome.DONE]


def test_too_many_unconfirmed_bytes_stop_reserves_first_then_settles_never_replays(shard: Shard) -> None:
    shard.stock(a=9)
    shard.decide(reserve("o1", a=1))
    shard.decide(reserve("o2", a=1))
    shard.decide(request_op(Move.LOCK, "r1", "a", 1))
    shard.decide(reserve("due", a=1, ttl_ms=0))
    unconfirmed = shard.entries()[-1][3]
    above = {"reserve_max": unconfirmed - 1, "settle_max": unconfirmed}
    for operation in (reserve("o3", a=1), request_op(Move.ADJUST, "r2", "a", 1)):
        assert shard.decide(operation, **above).outcome is Outcome.OVERLOADED
    assert shard.decide(order_op(Move.CONFIRM, "o1"), **above).outcome is Outcome.DONE

    above = {"reserve_max": 0, "settle_max": 0}
    image = shard.image()
    for operation in (
        order_op(Move.RELEASE, "o2"),
        order_op(Move.EXTEND, "o2", ttl_ms=2 * LONG_MS),
        order_op(Move.EXPIRE, "due"),
        order_op(Move.CONFIRM, "due"),
    ):
        assert shard.decide(operation, **above).outcome is Outcome.OVERLOADED
    for operation in (
        order_op(Move.CONFIRM, "o1"),
        reserve("o2", a=1),
        request_op(Move.LOCK, "r1", "a", 1),
        order_op(Move.READ, "o1"),
        order_op(Move.READ, "due"),
    ):
        assert shard.decide(operation, **above).outcome is Outcome.DONE
    assert shard.image() == image

    shard.confirm_all()
    assert shard.decide(reserve("o3", a=1), **above).outcome is Outcome.DONE
    with_room = shard.decide(order_op(Move.EXPIRE, "due"), reserve_max=0, settle_max=1 << 30)
    assert with_room.outcome is Outcome.DONE


# --- head, fence, term ---


def test_nothing_is_decided_without_a_head_under_a_fence_or_for_a_past_leader(shard: Shard) -> None:
    shard.stock(a=5)
    shard.decide(reserve("o1", a=1))
    image = shard.image()
    stale = shard.call(order_op(Move.EXPIRE, "o1"), term=shard.term + 1)
    assert (stale.status, stale.results) == (CallStatus.STALE_TERM, [])
    assert shard.call(order_op(Move.READ, "o1"), term=shard.term).status is CallStatus.DECIDED
    shard.fence(1)
    for script in ("reserve", "settle"):
        fenced = shard.call(order_op(Move.CONFIRM, "o1"), script=script)
        assert (fenced.status, fenced.results) == (CallStatus.FENCED, [])
    shard.fence(0)
    assert shard.image() == image
    nowhere = Shard(shard.client, shard.number, epoch=99)
    assert nowhere.call(reserve("o1", a=1)).status is CallStatus.NO_HEAD


def test_nothing_is_decided_where_the_log_lacks_what_is_known_to_be_confirmed(shard: Shard) -> None:
    """A Redis that came back with older data knows no order of the last moment: it would refuse what was promised."""
    shard.stock(a=50)
    ends = {0: (0, "")}
    for number in range(1, 6):
        shard.call(reserve(f"o{number}", a=1))
        ends[number] = shard.end()
    shard.confirm(*ends[3])
    for known in (ends[0], ends[2], ends[3], ends[5]):
        assert shard.call(order_op(Move.READ, "o1"), known=known).status is CallStatus.DECIDED
    # Up to the mark the number suffices: the mark stands on nothing but the published log, whose entries may be trimmed.
    assert shard.run("trim", [shard.names.head, shard.names.log], [shard.term, 5]) == 2
    assert shard.call(order_op(Move.READ, "o1"), known=ends[2]).status is CallStatus.DECIDED
    image = shard.image()
    for known in ((5, ends[4][1]), (4, "0" * 40), (6, ends[5][1])):
        for script in ("reserve", "settle"):
            forgot = shard.call(order_op(Move.CONFIRM, "o1"), script=script, known=known)
            assert (forgot.status, forgot.results) == (CallStatus.NOT_CONTINUATION, [])
    assert shard.image() == image


@pytest.mark.parametrize("damage", ["m", "digest", "evicted_m", "genesis", "confirmed_bytes", "whole"])
def test_a_damaged_head_is_no_head(shard: Shard, damage: str) -> None:
    shard.stock(a=5)
    if damage == "whole":
        shard.raise_with(shard.names.head)
    else:
        shard.client.hdel(shard.names.head, damage)
    assert shard.call(reserve("o1", a=1)).status is CallStatus.NO_HEAD
    assert shard.load_keys([["b", 1, 0, 0, 0, 0, 0, 0]]) == -1
    assert shard.load_orders(0) == -1
    assert shard.fence(1) == -1
    assert shard.take_over(9, 0, shard.genesis) == [CallStatus.NO_HEAD]


def test_a_call_that_changes_nothing_appends_nothing_and_names_the_logs_end(shard: Shard) -> None:
    shard.stock(a=5)
    first = shard.call(reserve("o1", a=1))
    again = shard.call(reserve("o1", a=1), reserve("o2", a=9))
    assert (again.m, again.digest) == (first.m, first.digest)
    assert len(shard.entries()) == 1


def test_entries_are_dense_and_chained(shard: Shard) -> None:
    shard.stock(a=500)
    for i in range(20):
        shard.call(reserve(f"o{i}", a=1, group=0), order_op(Move.READ, "o0", group=1), reserve(f"p{i}", a=1, group=2))
    digest, appended = shard.genesis, 0
    for n, (m, entry_digest, payload, bytes_so_far) in enumerate(shard.entries(), start=1):
        digest, appended = events.chain(digest, payload), appended + len(payload)
        assert (m, entry_digest, bytes_so_far) == (n, digest, appended)
    assert shard.end() == (20, digest)
    assert shard.head("appended_bytes") == appended
    seqs = [event.seq for change in shard.changes() for event in change.events]
    assert seqs == list(range(1, 41))
