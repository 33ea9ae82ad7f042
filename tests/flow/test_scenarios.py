"""Cases from the field, one test for each, and every class of the reconciler in the real stores.

Cases that another test shows already:

| case | test |
| --- | --- |
| 2 Each order fits, the sum does not | `test_races.test_random_quantities_never_exceed_the_stock`, and below with its own numbers |
| 3 Read-subtract-write lost update | `test_races.test_20_holds_of_one_unit_are_exactly_20` |
| 5 Snapshot before the lock wait | below, and `test_races.test_two_gateways_meet_an_unloaded_key_at_the_same_moment` |
| 28 Void twice | `test_races.test_void_twice` |
| 29 Commit twice at the same instant | `test_races.test_100_confirms_of_one_hold_at_once` |
| 31 Confirm against void | `test_races.test_confirm_against_release_1000_times` |
| 42 Two identical requests in flight | `test_races.test_50_identical_reserves_in_flight` |
| 48 Same key twice inside one batch | `test_races.test_repeated_ids_in_one_request_of_operations`, and below with an outage |
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from inventory.moves import Move
from stockgate.ports import choose_port
from tests.flow.asking import (
    at_once,
    balance,
    change,
    done,
    ledger,
    lines,
    move,
    mysql_session,
    operations,
    quantities,
    rebuild,
    redis_through_proxy,
    refused,
    replays,
    reserve,
    role_metrics,
    same_everywhere,
    status,
    worker_away,
)
from tests.flow.checks import check_stores
from tests.flow.world import OTHER_TENANT, World

pytestmark = pytest.mark.asyncio(loop_scope="module")


# --- A. Last unit, oversell, snapshot reads ---------------------------------------------------------------------------


async def test_case_01_check_and_take_are_one_step(world: World) -> None:
    """Both see the unit, both ask: one gets it, and the other is told that none is left."""
    await world.create_key("c01", 1)
    assert [(await balance(world, "c01", gateway))["available"] for gateway in (0, 1)] == [1, 1]
    replies = await at_once([reserve(world, f"c01-{gateway}", ("c01", 1), gateway=gateway) for gateway in (0, 1)])
    (loser,) = (reply for reply in replies if reply.status_code != 201)
    assert refused(loser, 409, "INSUFFICIENT_STOCK")["lines"] == [
        {"inventory_key": "c01", "requested": 1, "available": 0}
    ]
    assert await quantities(world, "c01") == (0, 1, 0, 0, 0)


async def test_case_02_each_order_fits_and_the_sum_does_not(world: World) -> None:
    await world.create_key("c02", 5)
    replies = await at_once([reserve(world, f"c02-{gateway}", ("c02", 3), gateway=gateway) for gateway in (0, 1)])
    assert sorted(reply.status_code for reply in replies) == [201, 409]
    assert await quantities(world, "c02") == (2, 3, 0, 0, 0)


async def test_case_05_decisions_rest_on_committed_numbers(world: World) -> None:
    """Whatever the server's own default is, who waits for the shard's row reads what was committed meanwhile."""
    await world.create_key("c05", 5)
    await world.query("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        async with mysql_session(world) as ask:
            async with worker_away(world):
                done(await reserve(world, "c05", ("c05", 1)), status=201)
                await ask("SELECT * FROM shard WHERE shard_no = 0 FOR UPDATE")
            waiting: list[tuple[Any, ...]] = []

            async def one_waits() -> bool:
                # The server looks again only after nobody has looked for 100 ms.
                await asyncio.sleep(0.2)
                waiting[:] = await ask(
                    "SELECT trx_isolation_level FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
                )
                return bool(waiting)

            await world.until(one_waits, 10.0, "the worker waits for the shard's row")
            assert set(waiting) == {("READ COMMITTED",)}
    finally:
        await world.query("SET GLOBAL TRANSACTION ISOLATION LEVEL READ COMMITTED")
    await same_everywhere(world, "c05", ("c05", "RESERVED"))


async def test_case_06_every_change_that_takes_stock_asks_the_live_numbers(world: World) -> None:
    """An order that was refused takes nothing later by itself: it is decided again, against what is left then."""
    await world.create_key("c06", 4)
    done(await reserve(world, "c06-A", ("c06", 3)), status=201)
    refused(await reserve(world, "c06-B", ("c06", 4)), 409, "INSUFFICIENT_STOCK")
    refused(await move(world, "c06-B", "confirm"), 404, "UNKNOWN_ORDER")
    refused(await move(world, "c06-B", "extend", ttl_seconds=60), 404, "UNKNOWN_ORDER")
    refused(await change(world, "c06", "lock", qty=2, request_no="c06-lock"), 409, "INSUFFICIENT_STOCK")
    refused(await change(world, "c06", "adjust", delta=-2, request_no="c06-less"), 409, "INSUFFICIENT_STOCK")
    assert await quantities(world, "c06") == (1, 3, 0, 0, 0)
    done(await move(world, "c06-A", "release"))
    done(await reserve(world, "c06-B", ("c06", 4)), status=201)
    assert await quantities(world, "c06") == (0, 4, 0, 0, 0)


async def test_case_07_the_loser_is_told_before_paying(world: World) -> None:
    """The hold is taken at checkout, so whoever holds can pay, and whoever cannot hold never pays."""
    await world.create_key("c07", 1)
    replies = await at_once([reserve(world, f"c07-{n}", ("c07", 1), gateway=n % 2) for n in range(2)])
    held = [n for n in range(2) if replies[n].status_code == 201]
    (winner,) = held
    assert await quantities(world, "c07") == (0, 1, 0, 0, 0)
    done(await move(world, f"c07-{winner}", "confirm", gateway=1 - winner))
    refused(await move(world, f"c07-{1 - winner}", "confirm"), 404, "UNKNOWN_ORDER")
    assert await quantities(world, "c07") == (0, 0, 1, 0, 0)


async def test_case_09_a_shopper_is_not_blocked_by_his_own_hold(world: World) -> None:
    """He moves it to a new order in one request, and nobody gets in between; or comes back with the same id."""
    await world.create_key("c09", 1)
    done(await reserve(world, "c09-shopper-0", ("c09", 1), buyer_id="shopper"), status=201)
    done(await reserve(world, "c09-shopper-0", ("c09", 1), buyer_id="shopper", gateway=1), replay=True, status=200)
    moved = asyncio.Event()
    tries: Counter[int] = Counter()

    async def rival(number: int) -> None:
        attempt = 0
        while not moved.is_set():
            attempt += 1
            reply = await reserve(world, f"c09-rival-{number}-{attempt}", ("c09", 1), gateway=number % 2)
            tries[reply.status_code] += 1

    async with asyncio.TaskGroup() as rivals:
        for number in range(6):
            rivals.create_task(rival(number))
        try:
            for turn in range(20):
                results = await operations(
                    world,
                    {"op": "release", "order_id": f"c09-shopper-{turn}", "reason": "cancelled"},
                    {"op": "reserve", "order_id": f"c09-shopper-{turn + 1}", "lines": lines(("c09", 1))},
                    gateway=turn % 2,
                )
                assert [result["status"] for result in results] == [200, 201], results
        finally:
            moved.set()
    assert tries.keys() == {409}
    assert await quantities(world, "c09") == (0, 1, 0, 0, 0)


# --- C. State machine, double commit, double release ------------------------------------------------------------------


async def test_case_32_a_rejected_hold_cannot_be_committed(world: World) -> None:
    await world.create_key("c32", 1)
    results = await operations(
        world,
        {"op": "reserve", "order_id": "c32", "lines": lines(("c32", 2))},
        {"op": "confirm", "order_id": "c32"},
        {"op": "consume", "order_id": "c32"},
    )
    assert [result["body"]["code"] for result in results] == ["INSUFFICIENT_STOCK", "UNKNOWN_ORDER", "UNKNOWN_ORDER"]
    refused(await move(world, "c32", "confirm", gateway=1), 404, "UNKNOWN_ORDER")
    assert await quantities(world, "c32") == (1, 0, 0, 0, 0)
    await same_everywhere(world, "c32")


async def test_case_34_a_terminal_order_says_so_everywhere(world: World) -> None:
    await world.create_key("c34", 10)
    ends = {
        "RELEASED": ("release",),
        "CONFIRMED": ("confirm",),
        "CONSUMED": ("confirm", "consume"),
        "RETURNED": ("confirm", "return"),
    }
    for state, verbs in ends.items():
        done(await reserve(world, f"c34-{state}", ("c34", 1)), status=201)
        bodies = [done(await move(world, f"c34-{state}", verb)) for verb in verbs]
        assert bodies[-1]["status"] == state
        assert bodies[-1]["expires_at"] is None
    for state in ends:
        await same_everywhere(world, f"c34-{state}", ("c34", state))
    headers = await world.query("SELECT open_lines FROM inventory_order WHERE order_id LIKE 'c34-%%'")
    assert set(headers) == {(0,)}


async def test_case_35_nobody_confirms_more_than_was_held(world: World) -> None:
    """A hold is confirmed as it is: a larger quantity is no request, another line is none of the order's."""
    await world.create_key("c35", 10)
    await world.create_key("c35-other", 10)
    done(await reserve(world, "c35", ("c35", 2)), status=201)
    refused(await move(world, "c35", "confirm", lines=lines(("c35", 3))), 422, "INVALID_REQUEST")
    refused(await move(world, "c35", "confirm", lines=["c35", "c35-other"]), 422, "INVALID_REQUEST")
    assert await quantities(world, "c35") == (8, 2, 0, 0, 0)
    assert await quantities(world, "c35-other") == (10, 0, 0, 0, 0)
    done(await move(world, "c35", "confirm", lines=["c35", "c35"]))
    assert await quantities(world, "c35") == (8, 0, 2, 0, 0)


async def test_case_37_stock_comes_back_once_for_each_time_it_was_taken(world: World) -> None:
    """Cancel, order again, cancel: plus 5, minus 5, plus 5; an ended order is not resumed under its old id."""
    await world.create_key("c37", 20)
    done(await reserve(world, "c37", ("c37", 2), ("c37", 3)), status=201)
    assert await quantities(world, "c37") == (15, 5, 0, 0, 0)
    done(await move(world, "c37", "release"))
    assert await quantities(world, "c37") == (20, 0, 0, 0, 0)
    refused(await reserve(world, "c37", ("c37", 5)), 409, "ORDER_CLOSED")
    done(await reserve(world, "c37-again", ("c37", 5)), status=201)
    assert await quantities(world, "c37") == (15, 5, 0, 0, 0)
    for replay in (False, True, True):
        done(await move(world, "c37-again", "release"), replay=replay)
    assert await quantities(world, "c37") == (20, 0, 0, 0, 0)


async def test_case_38_a_document_validated_again_takes_nothing_twice(world: World) -> None:
    await world.create_key("c38", 10)
    done(await reserve(world, "c38", ("c38", 4)), status=201)
    done(await move(world, "c38", "confirm"))
    done(await move(world, "c38", "return"))
    assert await quantities(world, "c38") == (10, 0, 0, 0, 0)
    refused(await move(world, "c38", "confirm"), 409, "ILLEGAL_TRANSITION")
    refused(await reserve(world, "c38", ("c38", 4)), 409, "ORDER_CLOSED")
    refused(await move(world, "c38", "consume"), 409, "ILLEGAL_TRANSITION")
    done(await move(world, "c38", "return"), replay=True)
    assert await quantities(world, "c38") == (10, 0, 0, 0, 0)
    await same_everywhere(world, "c38", ("c38", "RETURNED"))
    assert [kind for _, kind in await ledger(world, "c38")] == [Move.RESERVE, Move.CONFIRM, Move.RETURN]


# --- D. Idempotency ---------------------------------------------------------------------------------------------------


async def test_case_40_the_same_id_with_another_body(world: World) -> None:
    """Refused, with what differs and no effect; the same body in another order is the same."""
    await at_once([world.create_key(key, 10) for key in ("c40-a", "c40-b")])
    done(await reserve(world, "c40", ("c40-a", 1), ("c40-b", 2), buyer_id="ann"), status=201)
    conflict = refused(await reserve(world, "c40", ("c40-a", 2), ("c40-b", 2), gateway=1), 409, "ORDER_CONFLICT")
    assert conflict["differs"] == ["lines"]
    assert conflict["lines"] == [{"inventory_key": "c40-a", "requested": 2, "held": 1}]
    other = refused(await reserve(world, "c40", ("c40-a", 1), ("c40-b", 2), buyer_id="bob"), 409, "ORDER_CONFLICT")
    assert other["differs"] == ["buyer_id"]
    turned = {
        "ttl_seconds": 77,
        "buyer_id": "ann",
        "lines": [{"qty": 2, "inventory_key": "c40-b"}, {"qty": 1, "inventory_key": "c40-a"}],
        "order_id": "c40",
    }
    done(await world.post("/v1/reservations", turned, gateway=1), replay=True, status=200)
    done(await change(world, "c40-a", "adjust", delta=3, request_no="c40-more"))
    refused(await change(world, "c40-a", "adjust", delta=4, request_no="c40-more"), 409, "REQUEST_CONFLICT")
    refused(await change(world, "c40-b", "adjust", 1, delta=3, request_no="c40-more"), 409, "REQUEST_CONFLICT")
    assert await quantities(world, "c40-a") == (12, 1, 0, 0, 0)
    assert await quantities(world, "c40-b") == (8, 2, 0, 0, 0)


async def test_case_41_an_id_is_scoped_by_tenant_and_by_what_is_asked(world: World) -> None:
    await world.create_key("c41", 20)
    mine = done(await reserve(world, "c41", ("c41", 1), buyer_id="mine"), status=201)
    # The same name as a request number is another thing, and so is the same name in another call.
    adjusted = done(await change(world, "c41", "adjust", delta=5, request_no="c41"), status=200)
    assert adjusted["inventory_version"] == 2
    for verb in ("confirm", "release", "consume", "return"):
        refused(await move(world, "c41", verb, scope=OTHER_TENANT), 404, "UNKNOWN_ORDER")
    reply = await world.get("/v1/reservations/c41", scope=OTHER_TENANT, gateway=1)
    refused(reply, 404, "UNKNOWN_ORDER")
    theirs = done(await reserve(world, "c41", ("c41", 7), scope=OTHER_TENANT, gateway=1), status=201)
    assert theirs["lines"][0]["qty"] == 7
    assert "buyer_id" not in theirs
    released = done(await move(world, "c41", "release", scope=OTHER_TENANT))
    assert released["status"] == "RELEASED"
    reply = await world.get("/v1/reservations/c41")
    assert reply.json()["lines"] == mine["lines"]
    assert await quantities(world, "c41") == (24, 1, 0, 0, 0)


@pytest.mark.parametrize(("point", "replay"), [("before_call", False), ("after_call", True), ("before_answer", True)])
async def test_case_44_a_crash_between_effect_and_answer(world: World, point: str, replay: bool) -> None:
    """Whoever asks again finds what happened by the order's id; no id is stuck in between."""
    key = f"c44-{point}"
    await world.create_key(key, 5)
    victim = world.gateways[0]
    await victim.stop()
    victim.spawn(f"gateway.{point}=kill")

    async def listens() -> bool:
        # Not asked anything: any answer would be the one at which it dies.
        (await asyncio.open_connection("127.0.0.1", victim.port))[1].close()
        return True

    await world.until(listens, 15.0, "the gateway listens")
    with pytest.raises(ConnectionError):
        await reserve(world, key, (key, 2))
    await victim.died(5.0)
    victim.spawn()
    done(await reserve(world, key, (key, 2), gateway=1), replay=replay)
    await world.ready()
    done(await reserve(world, key, (key, 2)), replay=True)
    await same_everywhere(world, key, (key, "RESERVED"))
    assert await ledger(world, key) == [(key, Move.RESERVE)]


async def test_case_45_two_identical_orders_are_two_orders(world: World) -> None:
    """Nothing is guessed from the body: an order without an id of its own does not exist."""
    await world.create_key("c45", 10)
    replies = await at_once([reserve(world, f"c45-{n}", ("c45", 3), buyer_id="ann", gateway=n) for n in range(2)])
    for reply in replies:
        done(reply, status=201)
    assert await quantities(world, "c45") == (4, 6, 0, 0, 0)
    refused(await world.post("/v1/reservations", {"lines": lines(("c45", 3))}), 422, "INVALID_REQUEST")


async def test_case_47_an_expected_conflict_is_never_a_server_error(world: World) -> None:
    """Two identical finalises, a key reused on a revert, repeated operators' changes: 2xx or 4xx, one effect each."""
    await world.create_key("c47", 100)
    for order_id in ("c47-consume", "c47-return", "c47-mixed", "c47-extend"):
        done(await reserve(world, order_id, ("c47", 2)), status=201)
    for order_id in ("c47-consume", "c47-return", "c47-mixed"):
        done(await move(world, order_id, "confirm"))
    storms = {
        "consume": [move(world, "c47-consume", "consume", gateway=n % 2) for n in range(20)],
        "return": [move(world, "c47-return", "return", gateway=n % 2) for n in range(20)],
        "extend": [move(world, "c47-extend", "extend", gateway=n % 2, ttl_seconds=3_000) for n in range(20)],
        "adjust": [change(world, "c47", "adjust", n % 2, delta=7, request_no="c47-adjust") for n in range(20)],
        "lock": [change(world, "c47", "lock", n % 2, qty=5, request_no="c47-lock") for n in range(20)],
        "mixed": [move(world, "c47-mixed", ("consume", "return", "release")[n % 3], gateway=n % 2) for n in range(21)],
        "create": [world.post("/v1/inventory", NEW_KEY, scope="inventory", gateway=n % 2) for n in range(20)],
    }
    replies = dict(zip(storms, await at_once([at_once(storm) for storm in storms.values()]), strict=True))
    statuses = {name: Counter(reply.status_code for reply in found) for name, found in replies.items()}
    assert statuses["create"] == {201: 1, 200: 19}
    for name in ("consume", "return", "adjust", "lock"):
        assert statuses[name] == {200: 20}, (name, statuses[name])
        assert replays(replies[name]) == 19, name
    assert statuses["extend"] == {200: 20}
    assert statuses["mixed"] == {200: 7, 409: 14}, "one of the two ways wins, the other is refused"
    available, reserved, sold, consumed, locked = await quantities(world, "c47")
    assert (reserved, sold, locked) == (2, 0, 5)
    assert (available, consumed) in {(96, 4), (98, 2)}
    assert await quantities(world, "c47-new") == (3, 0, 0, 0, 0)


NEW_KEY = {
    "inventory_key": "c47-new",
    "item_id": "item",
    "inventory_mode": "QTY",
    "init_quantity": 3,
    "request_no": "c47-new",
}


async def test_case_48_a_batch_with_a_repeated_id_whose_answer_was_lost(world: World) -> None:
    """The whole request again, after a lost reply: every element replays what it did."""
    await world.create_key("c48", 10)
    await world.create_key("c48-warm", 1)
    take = {"op": "reserve", "order_id": "c48", "lines": lines(("c48", 2))}
    asked = (take, take, {"op": "confirm", "order_id": "c48"})
    async with redis_through_proxy(world, 0) as proxy:
        done(await reserve(world, "c48-warm", ("c48-warm", 1)), status=201)
        proxy.drop_replies()
        results = await operations(world, *asked)
        assert [(result["status"], result["body"]["outcome"]) for result in results] == [(503, "unknown")] * 3
        again = await operations(world, *asked, gateway=1)
        proxy.restore()
    # Confirmed meanwhile, so reserving it once more finds an order that is no open hold.
    assert [result["status"] for result in again] == [409, 409, 200]
    assert {result["body"]["code"] for result in again[:2]} == {"ORDER_CLOSED"}
    assert again[2]["replay"] is True
    assert await quantities(world, "c48") == (8, 0, 2, 0, 0)
    await same_everywhere(world, "c48", ("c48", "CONFIRMED"))


# --- E. Multi-line, bundles, multi-location, locks --------------------------------------------------------------------


async def test_case_50_two_lines_of_one_item_are_summed(world: World) -> None:
    await world.create_key("c50", 1)
    problem = refused(await reserve(world, "c50", ("c50", 1), ("c50", 1)), 409, "INSUFFICIENT_STOCK")
    assert problem["lines"] == [{"inventory_key": "c50", "requested": 2, "available": 1}]
    assert await quantities(world, "c50") == (1, 0, 0, 0, 0)
    done(await change(world, "c50", "adjust", delta=1, request_no="c50-more"))
    body = done(await reserve(world, "c50", ("c50", 1), ("c50", 1)), status=201)
    assert [(line["inventory_key"], line["qty"]) for line in body["lines"]] == [("c50", 2)]
    assert await quantities(world, "c50") == (0, 2, 0, 0, 0)


async def test_case_51_an_order_that_is_refused_starves_nobody(world: World) -> None:
    """While an order that can never be filled is asked again and again, whoever fits is served every time."""
    for key, quantity in (("c51-a", 100), ("c51-b", 2), ("c51-c", 100)):
        await world.create_key(key, quantity)
    served = asyncio.Event()
    tries: Counter[int] = Counter()

    async def never(number: int) -> None:
        while not served.is_set():
            order = (("c51-a", 1), ("c51-b", 3), ("c51-c", 1))
            reply = await reserve(world, f"c51-A-{number}", *order, gateway=number % 2)
            tries[reply.status_code] += 1

    async with asyncio.TaskGroup() as tasks:
        for number in range(6):
            tasks.create_task(never(number))
        try:
            for turn in range(30):
                done(await reserve(world, f"c51-B-{turn}", ("c51-b", 2), gateway=turn % 2), status=201)
                done(await move(world, f"c51-B-{turn}", "release", gateway=turn % 2))
        finally:
            served.set()
    assert tries.keys() == {409}
    assert tries[409] > 30
    for key in ("c51-a", "c51-c"):
        assert await quantities(world, key) == (100, 0, 0, 0, 0)


async def test_case_52_the_second_line_fails(world: World) -> None:
    """Nothing is held, and the answer names the short line alone."""
    await world.create_key("c52-a", 10)
    await world.create_key("c52-b", 1)
    problem = refused(await reserve(world, "c52", ("c52-a", 4), ("c52-b", 2)), 409, "INSUFFICIENT_STOCK")
    assert problem["lines"] == [{"inventory_key": "c52-b", "requested": 2, "available": 1}]
    problem = refused(await reserve(world, "c52", ("c52-a", 4), ("c52-none", 1)), 404, "UNKNOWN_INVENTORY_KEY")
    assert problem["inventory_keys"] == ["c52-none"]
    assert await quantities(world, "c52-a") == (10, 0, 0, 0, 0)
    await same_everywhere(world, "c52")
    assert await ledger(world, "c52") == []


async def test_case_54_no_quantity_goes_below_zero_and_none_spoils_another(world: World) -> None:
    """A place cannot be at minus 4: neither an operator nor the database lets it; the other place sells what it has."""
    await world.create_key("c54@A", 0)
    await world.create_key("c54@B", 3)
    refused(await change(world, "c54@A", "adjust", delta=-4, request_no="c54-minus"), 409, "INSUFFICIENT_STOCK")
    with pytest.raises(Exception, match="inventory_balance_not_negative"):
        await world.query("UPDATE inventory_balance SET available = -4, total = -4 WHERE inventory_key = 'c54@A'")
    done(await reserve(world, "c54", ("c54@B", 2)), status=201)
    assert await quantities(world, "c54@A") == (0, 0, 0, 0, 0)
    assert await quantities(world, "c54@B") == (1, 2, 0, 0, 0)


async def test_case_55_shipping_what_is_held_needs_nothing_available(world: World) -> None:
    await world.create_key("c55", 5)
    for order_id, qty in (("c55-3", 3), ("c55-2", 2)):
        done(await reserve(world, order_id, ("c55", qty)), status=201)
    assert await quantities(world, "c55") == (0, 5, 0, 0, 0)
    done(await move(world, "c55-3", "confirm"))
    done(await move(world, "c55-3", "consume"))
    assert await quantities(world, "c55") == (0, 2, 0, 3, 0)


async def test_case_57_moving_stock_between_places_keeps_the_sum(world: World) -> None:
    """What is held cannot be moved away; what is free can, and the two totals add up to the same."""
    await world.create_key("c57@A", 15)
    await world.create_key("c57@B", 0)
    done(await reserve(world, "c57", ("c57@A", 5)), status=201)
    refused(await change(world, "c57@A", "adjust", delta=-15, request_no="c57-all"), 409, "INSUFFICIENT_STOCK")
    for key, delta in (("c57@A", -10), ("c57@B", 10)):
        replies = await at_once([change(world, key, "adjust", n, delta=delta, request_no=f"c57{key}") for n in (0, 1)])
        assert replays(replies) == 1
    totals = [(await balance(world, key))["total"] for key in ("c57@A", "c57@B")]
    assert totals == [5, 10]
    done(await move(world, "c57", "confirm"))
    assert await quantities(world, "c57@A") == (0, 0, 5, 0, 0)
    assert await quantities(world, "c57@B") == (10, 0, 0, 0, 0)


async def test_case_58_opposite_orders_of_lines_lose_nothing(world: World) -> None:
    """[A, B] and [B, A] at once, first-time keys among them, and the worker replaced by another in the middle."""
    await world.create_key("c58-a", 1_000)
    await world.create_key("c58-b", 1_000)
    new_keys = [f"c58-new-{number}" for number in range(10)]
    await world.worker.kill()
    world.second_worker.spawn()
    try:
        pairs = (("c58-a", 1), ("c58-b", 1))

        def batch(first: int, turned: bool) -> list[dict[str, Any]]:
            return [
                {"op": "reserve", "order_id": f"c58-{n}", "lines": lines(*(pairs[::-1] if turned else pairs))}
                for n in range(first, first + 50)
            ]

        many = [operations(world, *batch(50 * n, n % 2 == 1), gateway=n % 2) for n in range(6)]
        keys = [world.create_key(key, 5) for key in new_keys]
        results, _ = await asyncio.gather(at_once(many), at_once(keys))
        assert {result["status"] for found in results for result in found} == {201}
        world.worker.spawn()
        await world.second_worker.kill()
        await world.quiet()
    finally:
        await world.second_worker.kill()
    rows = await world.query(
        "SELECT inventory_key, COUNT(DISTINCT ref), COUNT(*) FROM inventory_ledger "
        "WHERE inventory_key IN ('c58-a', 'c58-b') AND kind = 1 GROUP BY inventory_key ORDER BY inventory_key"
    )
    assert rows == [("c58-a", 300, 300), ("c58-b", 300, 300)]
    assert await quantities(world, "c58-a") == (700, 300, 0, 0, 0)
    assert (await world.shard())["alarm"] == ""
    await check_stores(world)


# --- the reconciler's classes -----------------------------------------------------------------------------------------

CLASSES = ("cold", "in_flight", "healthy", "drifted", "lost", "repaired", "stuck")


class Comparison:
    """A reconciler that compares often, and where it shows what it saw."""

    def __init__(self, world: World, port: int) -> None:
        self.world = world
        self.port = port

    async def metrics(self) -> dict[str, float]:
        return await role_metrics(self.world, self.port)

    async def gauge(self, key_class: str) -> float:
        return (await self.metrics())[f'stockgate_reconcile_keys{{class="{key_class}",shard="0"}}']

    async def drift(self) -> tuple[float, float]:
        """Found and repaired, by the metrics of this process."""
        metrics = await self.metrics()
        found, repaired = (f'stockgate_drift_{what}_total{{class="drifted"}}' for what in ("found", "repaired"))
        return metrics.get(found, 0), metrics.get(repaired, 0)

    async def last(self) -> dict[str, Any]:
        """The row that the periodic pass keeps up to date."""
        columns = (*CLASSES, "epoch", "detail", "finished_ms")
        statement = f"SELECT {', '.join(columns)} FROM inventory_reconcile_task WHERE status = 'PERIODIC'"
        rows = await self.world.query(statement)
        return dict(zip(columns, rows[0], strict=True)) if rows else dict.fromkeys(columns, 0)

    async def passes(self, count: int) -> None:
        """Wait until so many whole passes have begun and ended after this moment."""
        seen = (await self.last())["finished_ms"]
        # The first one that ends may have begun before.
        for _ in range(count + 1):

            async def ended(seen: int = seen) -> bool:
                return (await self.last())["finished_ms"] != seen

            await self.world.until(ended, 10.0, "the reconciler passes")
            seen = (await self.last())["finished_ms"]

    async def asked(self, *keys: str, dry_run: bool = False) -> dict[str, Any]:
        """A comparison on request, through the API, to its end."""
        body = {"keys": list(keys), "dry_run": dry_run, "reason": "a test asks"}
        reply = await self.world.post("/ops/reconcile", body, scope="ops")
        assert reply.status_code == 202, reply.text
        found: dict[str, Any] = {}

        async def finished() -> bool:
            answer = await self.world.get(f"/ops/reconcile/{reply.json()['id']}", scope="ops", gateway=1)
            found.update(answer.json())
            return found["status"] == "DONE"

        await self.world.until(finished, 10.0, "the comparison is done")
        return found

    async def repairs(self, key: str) -> list[tuple[Any, ...]]:
        """kind, class, status, before, after, requested_by of every repair task of a key."""
        return await self.world.query(
            "SELECT kind, class, status, before_image, after_image, requested_by FROM inventory_repair_task "
            "WHERE inventory_key = %s ORDER BY id",
            key,
        )


@pytest.fixture(scope="module")
def comparisons() -> dict[World, Comparison]:
    """The one of each world."""
    return {}


@pytest_asyncio.fixture(loop_scope="module")
async def comparison(world: World, comparisons: dict[World, Comparison]) -> Comparison:
    if world not in comparisons:
        assert world.reconciler is not None
        port = choose_port(set())
        await world.reconciler.stop()
        world.reconciler.spawn(
            STOCKGATE_METRICS_PORT=str(port), STOCKGATE_RECONCILE_INTERVAL_S="0.2", STOCKGATE_IN_FLIGHT_ALARM_S="1"
        )
        comparisons[world] = Comparison(world, port)

        async def compares() -> bool:
            return any(name.startswith("stockgate_reconcile_keys") for name in await comparisons[world].metrics())

        await world.until(compares, 15.0, "the reconciler compares")
    return comparisons[world]


@asynccontextmanager
async def damaged(world: World, key: str) -> AsyncGenerator[tuple[Any, str]]:
    """A client of Redis and the name of the key's balance in it, at a quiet moment."""
    await world.quiet()
    epoch = (await world.shard())["epoch"]
    async with world.redis() as client:
        yield client, f"{{sg:0}}:{epoch}:k:{key}"


async def test_class_cold(world: World, comparison: Comparison) -> None:
    """Not opened in this epoch: nothing is wrong, MySQL answers for it until somebody wants it."""
    await world.create_key("cold", 5)
    await rebuild(world)
    task = await comparison.asked("cold")
    assert {name: task[name] for name in CLASSES} == {**dict.fromkeys(CLASSES, 0), "cold": 1}
    assert [(await balance(world, "cold", gateway))["source"] for gateway in (0, 1)] == ["mysql", "mysql"]
    done(await reserve(world, "cold", ("cold", 1)), status=201)
    assert (await balance(world, "cold"))["source"] == "redis"
    await world.quiet()
    task = await comparison.asked("cold")
    assert (task["cold"], task["healthy"]) == (0, 1)


async def test_class_healthy(world: World, comparison: Comparison) -> None:
    keys = [f"healthy-{number}" for number in range(5)]
    await at_once([world.create_key(key, 5) for key in keys])
    await world.quiet()
    await comparison.passes(1)
    seen = await comparison.last()
    assert seen["healthy"] >= 5
    assert seen["in_flight"] == seen["drifted"] == seen["lost"] == seen["stuck"] == 0
    assert await comparison.gauge("healthy") == seen["healthy"]
    shown = (await status(world))["keys"]
    assert (shown["healthy"], shown["epoch"]) == (seen["healthy"], seen["epoch"])
    task = await comparison.asked(*keys, dry_run=True)
    assert {name: task[name] for name in CLASSES} == {**dict.fromkeys(CLASSES, 0), "healthy": 5}


async def test_class_in_flight(world: World, comparison: Comparison) -> None:
    """Redis is ahead: nothing is repaired; unmoved for too long it is named, with the reason."""
    await world.create_key("in-flight", 5)
    async with worker_away(world):
        done(await reserve(world, "in-flight", ("in-flight", 2)), status=201)
        await comparison.passes(1)
        assert (await comparison.last())["in_flight"] == 1
        assert await comparison.gauge("in_flight") == 1
        shown = await status(world)
        assert shown["keys"]["in_flight"] == 1
        assert shown["persist_lag_entries"] == 1
        assert shown["worker_attached"] is False

        async def stuck() -> bool:
            return (await comparison.last())["stuck"] == 1

        await world.until(stuck, 10.0, "the alarm for a key that does not move")
        detail = (await status(world))["keys"]["detail"]
        assert "in-flight" in detail
        assert "persist worker" in detail
        assert await quantities(world, "in-flight") == (3, 2, 0, 0, 0)
    await world.quiet()
    await comparison.passes(1)
    seen = await comparison.last()
    assert (seen["in_flight"], seen["stuck"]) == (0, 0)
    assert await comparison.repairs("in-flight") == []


async def test_class_drifted(world: World, comparison: Comparison) -> None:
    """Same seq, other quantities: set to MySQL's, with a task and a trace, and counted once."""
    await world.create_key("drifted", 10)
    done(await reserve(world, "drifted", ("drifted", 4)), status=201)
    async with damaged(world, "drifted") as (client, name):
        found, repaired = await comparison.drift()
        shown = await status(world)
        await client.hset(name, "available", 11)

        async def corrected() -> bool:
            return await client.hget(name, "available") == b"6"

        await world.until(corrected, 10.0, "the drift is corrected")

    async def counted() -> bool:
        return await comparison.drift() == (found + 1, repaired + 1)

    await world.until(counted, 5.0, "the drift is counted")
    now = await status(world)
    assert (now["drift_found"], now["drift_repaired"]) == (shown["drift_found"] + 1, shown["drift_repaired"] + 1)
    ((kind, key_class, state, before, after, _),) = await comparison.repairs("drifted")
    assert (kind, key_class, state) == ("correct", "drifted", "DONE")
    assert '"available":11' in before
    assert '"available":6' in after
    tasks = await world.query(
        "SELECT drifted, repaired FROM inventory_reconcile_task WHERE status = 'DONE' AND drifted > 0 ORDER BY id DESC"
    )
    assert tasks[0] == (1, 1)
    assert await quantities(world, "drifted") == (6, 4, 0, 0, 0)
    done(await move(world, "drifted", "confirm"))
    await world.quiet()
    await check_stores(world)


@pytest.mark.parametrize("how", ["absent", "behind", "no number"])
async def test_class_lost(world: World, comparison: Comparison, how: str) -> None:
    """Opened and gone, behind what MySQL has, or not a number: the shard is rebuilt, with a trace."""
    key = f"lost {how}"
    await world.create_key(key, 10)
    done(await reserve(world, f"lost-{how[:2]}", (key, 4)), status=201)
    async with damaged(world, key) as (client, name):
        epoch = (await world.shard())["epoch"]
        if how == "absent":
            await client.delete(name)
        elif how == "behind":
            await client.hincrby(name, "seq", -1)
        else:
            await client.hset(name, "reserved", "x")

    async def rebuilt() -> bool:
        return (await world.shard())["epoch"] > epoch

    await world.until(rebuilt, 20.0, "the shard is rebuilt")
    await world.quiet()
    ((kind, key_class, state, _, after, _),) = await comparison.repairs(key)
    assert (kind, key_class, state) == ("rebuild_shard", "lost", "REQUESTED")
    assert '"available":6' in after
    tasks = await world.query(
        "SELECT lost FROM inventory_reconcile_task WHERE status = 'DONE' AND epoch = %s ORDER BY id DESC", epoch
    )
    assert tasks[0] == (1,)

    async def confirmed() -> bool:
        return (await move(world, f"lost-{how[:2]}", "confirm", gateway=1)).status_code == 200

    await world.until(confirmed, 10.0, "the order goes on")
    assert await quantities(world, key) == (6, 0, 4, 0, 0)
    await world.quiet()
    await comparison.passes(1)
    assert (await comparison.last())["lost"] == 0
    await check_stores(world)


async def test_redis_is_not_pulled_back_to_a_mysql_that_lags(world: World, comparison: Comparison) -> None:
    """While the worker is away nothing is repaired, however different the stores are; afterwards the drift is."""
    await world.create_key("lag", 20)
    async with damaged(world, "lag") as (client, name):
        async with worker_away(world):
            done(await reserve(world, "lag", ("lag", 5)), status=201)
            await client.hset(name, "available", 13)
            await comparison.passes(3)
            assert await client.hmget(name, "available", "reserved", "seq") == [b"13", b"5", b"2"]
            assert await comparison.repairs("lag") == []
            task = await comparison.asked("lag")
            assert (task["in_flight"], task["drifted"], task["repaired"]) == (1, 0, 0)
            assert await client.hget(name, "available") == b"13"

        async def corrected() -> bool:
            return await client.hmget(name, "available", "reserved", "seq") == [b"15", b"5", b"2"]

        await world.until(corrected, 15.0, "the drift is corrected once MySQL has caught up")
    ((kind, key_class, state, *_),) = await comparison.repairs("lag")
    assert (kind, key_class, state) == ("correct", "drifted", "DONE")
    await world.quiet()
    await check_stores(world)
