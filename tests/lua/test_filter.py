"""The filter of orders that left Redis: what it lets the script take as new, and when nobody may ask it."""

from itertools import count
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from inventory.moves import Move
from inventory.operations import Line, Operation, lines_fingerprint
from inventory.outcomes import Outcome
from kernel import limits
from tests.lua.shard import TENANT, Shard, pack

_numbers: Final = count(5_000_000)
"""Shards of the property test."""


def reserve(order_id: str, key: str = "k") -> Operation:
    lines = [Line(key, 1)]
    return Operation(
        Move.RESERVE, 0, TENANT, order_id, ttl_ms=900_000, fingerprint=lines_fingerprint(lines), lines=lines
    )


def settle(order_id: str, kind: Move = Move.RELEASE) -> Operation:
    return Operation(kind, 0, TENANT, order_id, reason="cancelled")


def fill(shard: Shard, *order_ids: str, begins: int = 0, completes: int = 0, term: int | None = None) -> int:
    members = [f"o:{TENANT}/{order_id}" for order_id in order_ids]
    args = [shard.term if term is None else term, begins, pack(members), completes]
    return shard.run("fill_filter", [shard.names.head, shard.names.filter], args)


def complete(shard: Shard, *order_ids: str) -> None:
    assert fill(shard, *order_ids, begins=1, completes=1) == len(order_ids)


def outcome(shard: Shard, operation: Operation) -> Outcome:
    return shard.decide(operation).outcome


def told(shard: Shard) -> int:
    return shard.call(settle("nobody", Move.READ), script="settle").filtered


def test_without_a_filter_an_unknown_order_needs_a_look_up(shard: Shard) -> None:
    shard.stock(k=5)
    assert told(shard) == 0
    assert outcome(shard, reserve("a")) == Outcome.NEED_LOOKUP
    # One that is being filled says nothing yet.
    fill(shard, begins=1)
    assert told(shard) == 0
    assert outcome(shard, reserve("a")) == Outcome.NEED_LOOKUP


def test_a_complete_filter_takes_what_it_does_not_have_as_new(shard: Shard) -> None:
    shard.stock(k=5)
    complete(shard, "known")
    assert told(shard) == 1
    assert outcome(shard, reserve("a")) == Outcome.DONE
    assert outcome(shard, reserve("known")) == Outcome.NEED_LOOKUP
    assert outcome(shard, settle("b")) == Outcome.UNKNOWN_ORDER
    assert outcome(shard, settle("known")) == Outcome.NEED_LOOKUP


def test_other_tenants_orders_are_other_orders(shard: Shard) -> None:
    shard.stock(k=5)
    complete(shard, "known")
    other = reserve("known")
    other.tenant = "elsewhere"
    assert outcome(shard, other) == Outcome.DONE


def test_a_request_is_looked_up_all_the_same(shard: Shard) -> None:
    shard.stock(k=5)
    complete(shard)
    adjust = Operation(Move.ADJUST, 0, TENANT, "receipt", fingerprint="f", lines=[Line("k", 1)])
    assert outcome(shard, adjust) == Outcome.NEED_LOOKUP


def test_what_leaves_redis_is_in_the_filter(shard: Shard) -> None:
    shard.stock(k=5)
    complete(shard)
    for order_id in ("a", "b"):
        assert outcome(shard, reserve(order_id)) == Outcome.DONE
        assert outcome(shard, settle(order_id)) == Outcome.DONE
    assert shard.evict(shard.confirm_all()) == 2
    assert told(shard) == 1
    for order_id in ("a", "b"):
        assert outcome(shard, reserve(order_id)) == Outcome.NEED_LOOKUP
    assert outcome(shard, reserve("c")) == Outcome.DONE


def test_what_leaves_while_it_is_filled_is_in_it(shard: Shard) -> None:
    shard.stock(k=5)
    complete(shard)
    assert outcome(shard, reserve("a")) == Outcome.DONE
    assert outcome(shard, settle("a")) == Outcome.DONE
    fill(shard, begins=1)
    assert shard.evict(shard.confirm_all()) == 1
    fill(shard, completes=1)
    assert outcome(shard, reserve("a")) == Outcome.NEED_LOOKUP
    assert outcome(shard, reserve("b")) == Outcome.DONE


def damage(shard: Shard, how: str) -> None:
    client: Any = shard.client
    match how:
        case "gone":
            client.delete(shard.names.filter)
        case "cut":
            whole = client.get(shard.names.filter)
            client.set(shard.names.filter, whole[:-1])
        case _:
            client.delete(shard.names.filter)
            client.hset(shard.names.filter, "a", "b")


def test_a_filter_that_was_lost_is_no_empty_one(shard: Shard) -> None:
    shard.stock(k=9)
    for how in ("gone", "cut", "of another type"):
        shard.client.delete(shard.names.filter)
        complete(shard, "known")
        damage(shard, how)
        assert outcome(shard, reserve("known")) == Outcome.NEED_LOOKUP
        reply = shard.call(reserve("known"))
        assert reply.filtered == 0, how
        # Nor can what was begun be gone on with, or be called complete.
        assert fill(shard, "a") == -6
        assert fill(shard, completes=1) == -6


def test_an_eviction_notices_that_it_was_lost(shard: Shard) -> None:
    shard.stock(k=5)
    complete(shard)
    assert outcome(shard, reserve("a")) == Outcome.DONE
    assert outcome(shard, settle("a")) == Outcome.DONE
    damage(shard, "gone")
    assert shard.evict(shard.confirm_all()) == 1
    assert shard.client.hget(shard.names.head, "filter") == b"0"
    assert shard.client.exists(shard.names.filter) == 0
    # Filled anew, it has what MySQL has by then.
    complete(shard, "a")
    assert outcome(shard, reserve("a")) == Outcome.NEED_LOOKUP


def test_only_the_present_term_fills(shard: Shard) -> None:
    complete(shard, "known")
    assert fill(shard, begins=1, term=shard.term + 1) == -3
    assert fill(shard, completes=1, term=shard.term - 1) == -3
    assert told(shard) == 1


def test_the_string_has_the_size_that_python_knows(shard: Shard) -> None:
    fill(shard, begins=1)
    assert shard.client.strlen(shard.names.filter) == limits.FILTER_BYTES


@settings(max_examples=20, deadline=None)
@given(st.sets(st.text("abcdefgh", min_size=3, max_size=12), max_size=200))
def test_it_never_forgets(client: Any, order_ids: set[str]) -> None:
    shard = Shard(client, next(_numbers))
    shard.open()
    shard.stock(k=5)
    complete(shard, *sorted(order_ids))
    asked = [reserve(order_id) for order_id in sorted(order_ids)]
    for first in range(0, len(asked), 100):
        outcomes = {result.outcome for result in shard.call(*asked[first : first + 100]).results}
        assert outcomes <= {Outcome.NEED_LOOKUP, Outcome.SKIPPED}
    client.delete(shard.names.filter)
