"""Rules of operators' changes: the request number is the identity, the version guards edits, nothing overflows."""

import msgspec
import pytest
from redis.exceptions import ResponseError

from inventory.moves import Move, Quantities
from inventory.outcomes import Outcome
from kernel.limits import QUANTITY_TOTAL_MAX
from tests.lua.shard import TENANT, Shard, pack, request_op, reserve


def test_a_repeat_is_answered_with_the_balance_as_it_was_then(shard: Shard) -> None:
    shard.stock(a=5)
    first = shard.decide(request_op(Move.ADJUST, "r1", "a", 10))
    shard.decide(reserve("o1", a=3))
    image = shard.image()
    again = shard.decide(request_op(Move.ADJUST, "r1", "a", 10, proof=-1))
    assert (again.outcome, again.replay, again.wait) == (Outcome.DONE, 1, 1)
    assert again.detail == first.detail == ["a", 15, 0, 0, 0, 0, 1, 1]
    assert shard.image() == image
    shard.confirm_all()
    assert shard.decide(request_op(Move.ADJUST, "r1", "a", 10)).wait == 0


def test_another_request_under_the_same_number_is_a_conflict(shard: Shard) -> None:
    shard.stock(a=5)
    shard.decide(request_op(Move.LOCK, "r1", "a", 2))
    for other in (request_op(Move.LOCK, "r1", "a", 3), request_op(Move.UNLOCK, "r1", "a", 2)):
        result = shard.decide(other)
        assert (result.outcome, result.wait) == (Outcome.REQUEST_CONFLICT, 1)
    same_fingerprint = request_op(Move.UNLOCK, "r1", "a", 2)
    same_fingerprint.fingerprint = request_op(Move.LOCK, "r1", "a", 2).fingerprint
    assert shard.decide(same_fingerprint).outcome is Outcome.REQUEST_CONFLICT


def test_an_order_and_a_request_may_share_a_number(shard: Shard) -> None:
    shard.stock(a=5)
    assert shard.decide(reserve("same", a=1)).outcome is Outcome.DONE
    assert shard.decide(request_op(Move.ADJUST, "same", "a", 1)).outcome is Outcome.DONE


def test_the_version_guards_edits_and_sales_do_not_move_it(shard: Shard) -> None:
    shard.stock(a=5)
    shard.decide(request_op(Move.ADJUST, "r1", "a", 1, base_version=0))
    shard.decide(reserve("o1", a=1))
    image = shard.image()
    stale = shard.decide(request_op(Move.ADJUST, "r2", "a", 1, base_version=0))
    assert (stale.outcome, stale.detail) == (Outcome.VERSION_CONFLICT, [1])
    assert shard.image() == image
    assert shard.decide(request_op(Move.ADJUST, "r2", "a", 1, base_version=1)).balance_view().version == 2


@pytest.mark.parametrize(
    ("kind", "qty", "detail"),
    [(Move.ADJUST, -6, ["a", 6, 5]), (Move.LOCK, 6, ["a", 6, 5]), (Move.UNLOCK, 3, ["a", 3, 2])],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_nothing_goes_below_zero(shard: Shard, kind: Move, qty: int, detail: list[object]) -> None:
    shard.load_keys([["a", 5, 0, 0, 0, 2, 3, 0]])
    image = shard.image()
    result = shard.decide(request_op(kind, "r1", "a", qty))
    assert (result.outcome, result.detail) == (Outcome.INSUFFICIENT_STOCK, [detail])
    assert shard.image() == image


def test_exactly_everything_can_be_adjusted_away(shard: Shard) -> None:
    shard.stock(a=5)
    result = shard.decide(request_op(Move.ADJUST, "r1", "a", -5))
    assert result.outcome is Outcome.DONE
    [event] = shard.changes()[-1].events
    assert (event.qty, event.d_available, event.available) == (-5, -5, 0)


def test_the_total_stays_in_the_exact_range(shard: Shard) -> None:
    shard.load_keys([["a", QUANTITY_TOTAL_MAX - 10, 1, 2, 3, 0, 0, 0]])
    for delta in (5, QUANTITY_TOTAL_MAX, QUANTITY_TOTAL_MAX + 1, 2**53, 2**60):
        result = shard.decide(request_op(Move.ADJUST, f"r{delta}", "a", delta))
        assert (result.outcome, result.detail) == (Outcome.QUANTITY_LIMIT, ["a"])
    assert shard.decide(request_op(Move.ADJUST, "r1", "a", 4)).outcome is Outcome.DONE
    assert shard.balance("a") == Quantities(QUANTITY_TOTAL_MAX - 6, 1, 2, 3, 0)
    assert shard.changes()[-1].events[0].available == QUANTITY_TOTAL_MAX - 6
    assert shard.decide(request_op(Move.LOCK, "r2", "a", QUANTITY_TOTAL_MAX - 6)).outcome is Outcome.DONE
    assert shard.decide(request_op(Move.LOCK, "r3", "a", 0)).outcome is Outcome.QUANTITY_LIMIT
    assert shard.decide(request_op(Move.UNLOCK, "r3", "a", -1)).outcome is Outcome.QUANTITY_LIMIT
    assert shard.decide(request_op(Move.ADJUST, "r4", "a", -(2**60))).outcome is Outcome.QUANTITY_LIMIT


def test_proof_loading_and_damage_are_the_same_as_for_orders(shard: Shard) -> None:
    assert shard.decide(request_op(Move.LOCK, "r1", "a", 1)).detail == ["a"]
    shard.stock(a=5)
    assert shard.decide(request_op(Move.LOCK, "r1", "a", 1, proof=-1)).outcome is Outcome.NEED_LOOKUP
    assert shard.decide(request_op(Move.LOCK, "r1", "a", 1, proof=0)).outcome is Outcome.DONE
    record = shard.names.request(TENANT, "r1")
    assert shard.client.zscore(shard.names.settled, f"q:{TENANT}/r1") is not None
    for damage in (b"\xc1", pack([]), pack([1, 2, 3, 4])):
        shard.client.hset(record, "h", damage)
        assert shard.decide(request_op(Move.LOCK, "r1", "a", 1)).outcome is Outcome.LOST
    shard.raise_with(record)
    assert shard.decide(request_op(Move.LOCK, "r1", "a", 1)).outcome is Outcome.LOST
    shard.client.delete(record)
    shard.client.hset(record, "other", "x")
    assert shard.decide(request_op(Move.LOCK, "r1", "a", 1)).outcome is Outcome.LOST


def test_the_record_holds_what_a_later_epoch_would_load(shard: Shard) -> None:
    shard.stock(a=5)
    operation = request_op(Move.LOCK, "r1", "a", 2)
    view = shard.decide(operation).detail
    held = msgspec.msgpack.decode(shard.client.hget(shard.names.request(TENANT, "r1"), "h"))
    assert held == [operation.fingerprint, Move.LOCK, 1, view]


def test_two_lines_are_an_error_of_the_call(shard: Shard) -> None:
    operation = request_op(Move.LOCK, "r1", "a", 2)
    operation.lines = []
    with pytest.raises(ResponseError, match="number of lines"):
        shard.call(operation)
