"""Loaders: each thing once, never over what Redis has, never from a SELECT older than what left; eviction; reading."""

import time

import pytest

from inventory.moves import LineState, Move, Quantities
from inventory.outcomes import Outcome
from tests.lua.shard import TENANT, Shard, order_op, pack, request_op, reserve

FUTURE_MS = int(time.time() * 1000) + 3_600_000
FINGERPRINT = reserve("any", a=2).fingerprint


def order_row(
    ref: str, state: LineState = LineState.RESERVED, *, due_ms: int = FUTURE_MS, qty: int = 2
) -> list[object]:
    return [TENANT, ref, FINGERPRINT, due_ms, "anna", 5, 1, [["a", qty, state, "", 1, 7]]]


# --- keys ---


def test_two_loaders_write_the_same_and_a_late_one_changes_nothing(shard: Shard) -> None:
    rows = [["a", 5, 1, 2, 3, 4, 9, 6], ["b", 7, 0, 0, 0, 0, 0, 0]]
    assert shard.load_keys(rows) == 2
    assert shard.balance("a") == Quantities(5, 1, 2, 3, 4)
    assert (shard.seq("a"), shard.client.hget(shard.names.balance("a"), "version")) == (9, b"6")
    shard.decide(reserve("o1", a=2))
    image = shard.image()
    assert shard.load_keys(rows) == 0
    assert shard.load_keys([*rows, ["c", 1, 0, 0, 0, 0, 0, 0]]) == 1
    image.pop(shard.names.opened.encode())
    after = shard.image()
    assert {name: after[name] for name in image} == image


def test_a_key_that_was_lost_is_not_loaded_again(shard: Shard) -> None:
    shard.stock(a=5)
    shard.client.delete(shard.names.balance("a"))
    assert shard.load_keys([["a", 5, 0, 0, 0, 0, 0, 0]]) == 0
    assert shard.decide(reserve("o1", a=1)).outcome is Outcome.LOST


def test_loaders_of_another_time_find_no_head_or_a_fence(shard: Shard) -> None:
    row = ["a", 5, 0, 0, 0, 0, 0, 0]
    assert Shard(shard.client, shard.number, epoch=7).load_keys([row]) == -1
    assert Shard(shard.client, shard.number, epoch=7).load_orders(0, [order_row("o1")]) == -1
    shard.fence(1)
    image = shard.image()
    assert shard.load_keys([row]) == -2
    assert shard.load_orders(0, [order_row("o1")]) == -2
    assert shard.image() == image


def test_a_thousand_keys_load_in_one_call(shard: Shard) -> None:
    rows = [[f"key {i}", i, 0, 0, 0, 0, i, 0] for i in range(1000)]
    assert shard.load_keys(rows) == 1000
    assert shard.balance("key 999").available == 999


@pytest.mark.parametrize("units", [0, 2**52])
def test_numbers_of_any_size_load_exactly(shard: Shard, units: int) -> None:
    shard.load_keys([["a", units, 0, 0, 0, 0, 2**53 - 1, 0]])
    assert shard.client.hget(shard.names.balance("a"), "available") == b"%d" % units
    assert shard.seq("a") == 2**53 - 1


# --- orders and requests ---


def test_a_loaded_order_stands_as_mysql_has_it_and_needs_no_waiting(shard: Shard) -> None:
    shard.load_keys([["a", 5, 2, 0, 0, 0, 7, 0]])
    assert shard.load_orders(0, [order_row("o1"), order_row("o2", LineState.CONFIRMED)]) == 2
    reply = shard.call(order_op(Move.READ, "o1", proof=-1))
    [result] = reply.results
    assert (result.outcome, result.wait, reply.m) == (Outcome.DONE, 0, 0)
    view = result.order_view()
    assert (view.due_ms, view.buyer_id, view.lines[0].epoch, view.lines[0].seq) == (FUTURE_MS, "anna", 1, 7)
    assert shard.client.zscore(shard.names.due, f"o:{TENANT}/o1") == FUTURE_MS
    assert shard.client.zscore(shard.names.settled, f"o:{TENANT}/o2") > 0
    replay = shard.decide(reserve("o1", a=2, proof=-1))
    assert (replay.outcome, replay.replay, replay.wait) == (Outcome.DONE, 1, 0)
    assert shard.decide(order_op(Move.CONFIRM, "o1", proof=-1)).outcome is Outcome.DONE
    assert shard.changes()[-1].created_ms == 5


def test_a_loaded_request_is_replayed(shard: Shard) -> None:
    operation = request_op(Move.LOCK, "r1", "a", 1, proof=-1)
    view = ["a", 4, 0, 0, 0, 1, 3, 2]
    assert shard.load_orders(0, [], [[TENANT, "r1", operation.fingerprint, Move.LOCK, view]]) == 1
    result = shard.decide(operation)
    assert (result.outcome, result.replay, result.wait, result.detail) == (Outcome.DONE, 1, 0, view)


def test_a_record_that_redis_has_is_never_written_over(shard: Shard) -> None:
    shard.stock(a=5)
    shard.decide(reserve("o1", a=2))
    shard.decide(order_op(Move.CONFIRM, "o1"))
    operation = request_op(Move.LOCK, "r1", "a", 1)
    shard.decide(operation)
    image = shard.image()
    requests = [[TENANT, "r1", "0" * 16, Move.LOCK, ["a", 0, 0, 0, 0, 0, 0, 0]]]
    assert shard.load_orders(99, [order_row("o1")], requests) == 0
    assert shard.image() == image


def test_a_select_older_than_what_left_loads_nothing(shard: Shard) -> None:
    """A loader that slept since before the order was made, settled, applied and evicted would bring it back."""
    shard.stock(a=5)
    shard.decide(reserve("o1", a=2))
    shard.decide(order_op(Move.RELEASE, "o1"))
    assert shard.evict(2) == 1
    image = shard.image()
    assert shard.load_orders(1, [order_row("o1")]) == -5
    assert shard.image() == image
    assert shard.load_orders(2, [order_row("o1", LineState.RELEASED)]) == 1
    assert shard.decide(reserve("o1", a=2, proof=-1)).outcome is Outcome.ORDER_CLOSED


def test_an_order_of_a_thousand_lines_loads(shard: Shard) -> None:
    lines = [[f"k{i}", 1, LineState.RESERVED, "", 1, i] for i in range(1000)]
    assert shard.load_orders(0, [[TENANT, "o1", "f" * 16, FUTURE_MS, "", 5, 1000, lines]]) == 1
    view = shard.decide(order_op(Move.READ, "o1")).order_view()
    assert [line.inventory_key for line in view.lines] == [f"k{i}" for i in range(1000)]


# --- eviction ---


def test_only_settled_applied_and_old_enough_records_leave(shard: Shard) -> None:
    shard.stock(a=50)
    shard.decide(reserve("held", a=1))  # m = 1
    for n, kind in enumerate((Move.RELEASE, Move.CONFIRM), start=1):
        shard.decide(reserve(f"o{n}", a=1))
        shard.decide(order_op(kind, f"o{n}"))  # m = 3, 5
    shard.decide(request_op(Move.LOCK, "r1", "a", 1))  # m = 6
    now_ms = shard.call(order_op(Move.READ, "held")).now_ms
    assert shard.evict(99, before_ms=now_ms - 60_000) == 0
    assert shard.evict(4) == 1
    assert shard.head("evicted_m") == 3
    assert shard.client.exists(shard.names.order(TENANT, "o1")) == 0
    assert shard.client.zscore(shard.names.settled, f"o:{TENANT}/o1") is None
    assert shard.evict(6, limit=1) == 1
    assert shard.head("evicted_m") == 5
    assert shard.evict(6) == 1
    assert shard.head("evicted_m") == 6
    assert shard.client.exists(shard.names.request(TENANT, "r1")) == 0
    assert shard.client.exists(shard.names.order(TENANT, "held")) == 1
    assert shard.evict(6) == 0
    assert shard.head("evicted_m") == 6


def test_a_loaded_record_leaves_without_raising_the_mark(shard: Shard) -> None:
    shard.load_orders(0, [order_row("o1", LineState.RETURNED)])
    assert shard.evict(0) == 1
    assert shard.head("evicted_m") == 0


def test_what_is_read_again_or_damaged_does_not_leave_wrongly(shard: Shard) -> None:
    shard.stock(a=5)
    shard.decide(reserve("o1", a=1))
    shard.decide(order_op(Move.CONFIRM, "o1"))
    shard.decide(order_op(Move.CONSUME, "o1"))  # m = 3 now
    assert shard.evict(2) == 0
    shard.client.hset(shard.names.order(TENANT, "o1"), "h", b"\xc1")
    assert shard.evict(9) == 0
    assert shard.decide(order_op(Move.READ, "o1")).outcome is Outcome.LOST


def test_a_thousand_records_leave_in_one_call(shard: Shard) -> None:
    rows = [order_row(f"o{i}", LineState.CONSUMED) for i in range(1500)]
    assert shard.load_orders(0, rows) == 1500
    assert shard.evict(0, limit=1000) == 1000
    assert shard.evict(0, limit=1000) == 500


# --- reading, holding, correcting ---


def test_read_keys_tells_cold_loaded_and_lost_under_a_fence_too(shard: Shard) -> None:
    shard.load_keys([["a", 5, 1, 2, 3, 4, 9, 6], ["b", 1, 0, 0, 0, 0, 0, 0], ["c", 1, 0, 0, 0, 0, 0, 0]])
    shard.client.delete(shard.names.balance("b"))
    shard.client.hset(shard.names.balance("c"), "sold", "-1")
    shard.freeze(1, "a")
    shard.fence(1)
    assert shard.read_keys("a", "b", "c", "d") == (
        0,
        [
            [1, "a", 5, 1, 2, 3, 4, 9, 6, 1],
            [2, "b", 0, 0, 0, 0, 0, 0, 0, 0],
            [2, "c", 0, 0, 0, 0, 0, 0, 0, 0],
            [0, "d", 0, 0, 0, 0, 0, 0, 0, 0],
        ],
    )
    assert Shard(shard.client, shard.number, epoch=9).read_keys("a") == (1, [])


def test_read_keys_reads_nothing_where_the_log_lacks_what_is_known_to_be_confirmed(shard: Shard) -> None:
    shard.stock(a=5)
    for number in range(3):
        shard.call(reserve(f"o{number}", a=1))
    end = shard.end()
    assert shard.read_keys("a", known=end)[1][0][2] == 2
    assert shard.read_keys("a", known=(end[0], "0" * 40)) == (4, [])
    assert shard.read_keys("a", known=(end[0] + 1, end[1])) == (4, [])


def test_freeze_names_its_term_and_makes_no_half_key(shard: Shard) -> None:
    shard.stock(a=5)
    assert shard.freeze(1, "a", term=9) == -3
    assert shard.freeze(1, "a", "zz") == 1
    assert shard.client.exists(shard.names.balance("zz")) == 0
    assert shard.load_keys([["zz", 1, 0, 0, 0, 0, 0, 0]]) == 1
    assert shard.freeze(0, "a", "zz") == 2
    assert Shard(shard.client, shard.number, epoch=9).freeze(1, "a") == -1


def correct(shard: Shard, seq: int, compared: list[int], corrected: list[int]) -> int:
    return shard.run("correct", [shard.names.head, shard.names.balance("a")], [pack([seq, compared, corrected])])


def test_correct_sets_only_what_it_compared(shard: Shard) -> None:
    shard.load_keys([["a", 5, 1, 2, 3, 4, 9, 6]])
    shard.freeze(1, "a")
    image = shard.image()
    good = [5, 1, 2, 3, 4]
    assert correct(shard, 8, good, [6, 0, 2, 3, 4]) == 0
    for place in range(5):
        other = list(good)
        other[place] += 1
        assert correct(shard, 9, other, [6, 0, 2, 3, 4]) == 0
    assert shard.image() == image
    assert correct(shard, 9, good, [6, 0, 2, 3, 4]) == 1
    assert shard.balance("a") == Quantities(6, 0, 2, 3, 4)
    assert shard.read_keys("a")[1][0][7:] == [9, 6, 1], "seq, version and hold stay"
    assert shard.entries() == []
    assert correct(shard, 9, good, [6, 0, 2, 3, 4]) == 0


def test_correct_makes_no_key_and_needs_a_head(shard: Shard) -> None:
    assert correct(shard, 0, [0] * 5, [1] * 5) == 0
    assert shard.client.exists(shard.names.balance("a")) == 0
    shard.stock(a=1)
    shard.client.delete(shard.names.head)
    assert correct(shard, 0, [1, 0, 0, 0, 0], [2, 0, 0, 0, 0]) == 0
