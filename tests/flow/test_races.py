"""Many callers at the same moment, over TCP, through two gateway processes: one effect each, and nothing sold twice."""

import asyncio
import random
import time
from collections import Counter
from datetime import datetime
from typing import NamedTuple

import pytest

import lua
from inventory.moves import Move
from tests.flow.asking import (
    api_lines,
    at_once,
    balance,
    change,
    check_real_time,
    done,
    ledger,
    ledger_lines,
    move,
    mysql_lines,
    operations,
    quantities,
    rebuild,
    redis_lines,
    redis_through_proxy,
    refused,
    replays,
    reserve,
    same_everywhere,
)
from tests.flow.checks import check_stores
from tests.flow.wire import Wire, WireReply
from tests.flow.world import World
from tests.proxy import proxy_to

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Bought(NamedTuple):
    """One buyer's try; times are of `time.monotonic`."""

    order_id: str
    qty: int
    asked: float
    answered: float
    reply: WireReply


async def buy(world: World, key: str, order_id: str, qty: int, gateway: int) -> Bought:
    asked = time.monotonic()
    reply = await reserve(world, order_id, (key, qty), gateway=gateway)
    return Bought(order_id, qty, asked, time.monotonic(), reply)


def accepted(bought: list[Bought]) -> list[Bought]:
    """Those who got theirs; all others must have been told that too little is left, and truly so."""
    for one in bought:
        if one.reply.status_code != 201:
            (short,) = refused(one.reply, 409, "INSUFFICIENT_STOCK")["lines"]
            assert short["available"] < one.qty
    return [one for one in bought if one.reply.status_code == 201]


async def test_500_buyers_of_the_last_100_units(world: World) -> None:
    await world.create_key("last-100", 100)
    bought = await at_once([buy(world, "last-100", f"last-{n}", 1, n % 2) for n in range(500)])
    winners = accepted(bought)
    assert len(winners) == 100
    assert await quantities(world, "last-100") == (0, 100, 0, 0, 0)
    check_real_time([(one.asked, one.answered, one.reply.json()["lines"][0]["seq"]) for one in winners])
    await world.quiet()
    rows = await world.query("SELECT ref FROM inventory_ledger WHERE inventory_key = 'last-100' AND kind = %s", 1)
    assert sorted(ref for (ref,) in rows) == sorted(one.order_id for one in winners)
    loser = next(one for one in bought if one.reply.status_code != 201)
    assert await api_lines(world, loser.order_id) == {}
    await check_stores(world)


@pytest.mark.parametrize("clients", [2, 50, 500])
async def test_random_quantities_never_exceed_the_stock(world: World, clients: int) -> None:
    """What is accepted fits, and who is refused at the end is refused because it does not fit."""
    rng = random.Random(clients)
    key, stock = f"random-{clients}", 3 * clients + 2
    await world.create_key(key, stock)
    bought = await at_once([buy(world, key, f"{key}-{n}", rng.randint(1, 9), n % 2) for n in range(clients)])
    taken = sum(one.qty for one in accepted(bought))
    left = (await balance(world, key))["available"]
    assert taken + left == stock
    # Nothing was given back, so whoever was refused still does not fit.
    assert all(one.qty > left for one in bought if one.reply.status_code != 201)
    if left:
        done(await reserve(world, f"{key}-rest", (key, left), gateway=1), status=201)
    refused(await reserve(world, f"{key}-more", (key, 1)), 409, "INSUFFICIENT_STOCK")


async def test_20_holds_of_one_unit_are_exactly_20(world: World) -> None:
    await world.create_key("twenty", 100)
    for reply in await at_once([reserve(world, f"twenty-{n}", ("twenty", 1), gateway=n % 2) for n in range(20)]):
        done(reply, status=201)
    locks = [change(world, "twenty", "lock", n % 2, qty=1, request_no=f"twenty-lock-{n}") for n in range(20)]
    for reply in await at_once(locks):
        done(reply, status=200)
    assert await quantities(world, "twenty") == (60, 20, 0, 0, 20)
    await world.quiet()
    await check_stores(world)


async def test_100_confirms_of_one_hold_at_once(world: World) -> None:
    await world.create_key("one-hold", 5)
    done(await reserve(world, "one-hold", ("one-hold", 2)), status=201)
    replies = await at_once([move(world, "one-hold", "confirm", gateway=n % 2) for n in range(100)])
    assert Counter(reply.status_code for reply in replies) == {200: 100}
    assert replays(replies) == 99
    assert len({str(reply.json()["lines"]) for reply in replies}) == 1, "every answer tells the same effect"
    assert await quantities(world, "one-hold") == (3, 0, 2, 0, 0)
    await world.quiet()
    assert await ledger(world, "one-hold") == [("one-hold", Move.RESERVE), ("one-hold", Move.CONFIRM)]


async def test_50_identical_reserves_in_flight(world: World) -> None:
    await world.create_key("identical", 50)
    replies = await at_once([reserve(world, "identical", ("identical", 3), gateway=n % 2) for n in range(50)])
    assert Counter(reply.status_code for reply in replies) == {201: 1, 200: 49}
    assert replays(replies) == 49
    assert len({str(reply.json()["lines"]) for reply in replies}) == 1
    assert await quantities(world, "identical") == (47, 3, 0, 0, 0)
    await world.quiet()
    assert await ledger(world, "identical") == [("identical", Move.RESERVE)]


async def test_void_twice(world: World) -> None:
    await world.create_key("void", 10)
    for order_id in ("void-1", "void-2"):
        done(await reserve(world, order_id, ("void", 4)), status=201)
    first = done(await move(world, "void-1", "release"))
    again = done(await move(world, "void-1", "release", gateway=1), replay=True)
    assert first["lines"] == again["lines"]
    replies = await at_once([move(world, "void-2", "release", gateway=n % 2) for n in range(20)])
    assert Counter(reply.status_code for reply in replies) == {200: 20}
    assert replays(replies) == 19
    assert await quantities(world, "void") == (10, 0, 0, 0, 0)
    for order_id in ("void-1", "void-2"):
        await same_everywhere(world, order_id, ("void", "RELEASED"))
        assert await ledger(world, order_id) == [("void", Move.RESERVE), ("void", Move.RELEASE)]


async def test_confirm_against_release_1000_times(world: World) -> None:
    """Each time one of them, and the same one in every store."""
    await world.create_key("against", 1_000)
    ids = [f"against-{n}" for n in range(1_000)]
    for first in (0, 500):
        asked = [
            {"op": "reserve", "order_id": order_id, "lines": [{"inventory_key": "against", "qty": 1}]}
            for order_id in ids[first : first + 500]
        ]
        assert {result["status"] for result in await operations(world, *asked)} == {201}
    few = asyncio.Semaphore(50)
    told: dict[str, str] = {}

    async def race(number: int, order_id: str) -> None:
        async with few:
            confirm, release = await at_once(
                [
                    move(world, order_id, "confirm", gateway=number % 2),
                    move(world, order_id, "release", gateway=(number + 1) % 2),
                ]
            )
        loser, told[order_id] = (release, "CONFIRMED") if confirm.status_code == 200 else (confirm, "RELEASED")
        winner = confirm if loser is release else release
        assert done(winner)["status"] == told[order_id]
        assert refused(loser, 409, "ILLEGAL_TRANSITION")["order_status"] == told[order_id]

    await at_once([race(number, order_id) for number, order_id in enumerate(ids)])
    counts = Counter(told.values())
    assert min(counts["CONFIRMED"], counts["RELEASED"]) > 0, "a race that one side always wins shows nothing"
    assert await quantities(world, "against") == (counts["RELEASED"], 0, counts["CONFIRMED"], 0, 0)

    async def read(number: int, order_id: str) -> dict[str, str]:
        async with few:
            return await api_lines(world, order_id, number % 2)

    api = await at_once([read(number, order_id) for number, order_id in enumerate(ids)])
    await world.quiet()
    expected = {order_id: {"against": state} for order_id, state in told.items()}
    assert dict(zip(ids, api, strict=True)) == expected
    assert await redis_lines(world, ids) == expected
    mysql, rows = await mysql_lines(world), await ledger_lines(world)
    assert {order_id: mysql[order_id] for order_id in ids} == expected
    assert {order_id: rows[order_id] for order_id in ids} == expected
    await check_stores(world)


async def test_the_winner_whose_reply_was_lost_asks_again(world: World) -> None:
    """The reply is lost between gateway and caller: the winner is still the winner, and the others are still refused."""
    await world.create_key("lost-reply", 1)
    body = {"order_id": "winner", "lines": [{"inventory_key": "lost-reply", "qty": 1}]}
    async with proxy_to(world.gateways[0].url) as proxy:
        wire = Wire(timeout_s=1.0)

        async def ask() -> WireReply:
            return await wire.call("POST", proxy.port, "/v1/reservations", world.headers("orders"), body)

        proxy.drop_replies()
        with pytest.raises(TimeoutError):
            await ask()
        refused(await reserve(world, "other", ("lost-reply", 1), gateway=1), 409, "INSUFFICIENT_STOCK")
        proxy.restore()
        assert done(await ask(), replay=True, status=200)["status"] == "RESERVED"
        wire.close()
    refused(await reserve(world, "other", ("lost-reply", 1)), 409, "INSUFFICIENT_STOCK")
    await world.quiet()
    assert await ledger(world, "winner") == [("lost-reply", Move.RESERVE)]
    assert await ledger(world, "other") == []


async def test_the_winner_whose_decision_was_lost_asks_again(world: World) -> None:
    """The script's reply is lost between Redis and gateway: 503 unknown, nothing undone, the repeat learns what happened."""
    await world.create_key("lost-decision", 1)
    await world.create_key("warm", 1)
    async with redis_through_proxy(world, 0) as proxy:
        # The gateway has spoken to Redis before, so that only the reply of the decision is missing.
        done(await reserve(world, "warm", ("warm", 1)), status=201)
        proxy.drop_replies()
        problem = refused(await reserve(world, "unsure", ("lost-decision", 1)), 503, "UNAVAILABLE")
        assert problem["outcome"] == "unknown"
        refused(await reserve(world, "rival", ("lost-decision", 1), gateway=1), 409, "INSUFFICIENT_STOCK")
        done(await reserve(world, "unsure", ("lost-decision", 1), gateway=1), replay=True, status=200)
        proxy.restore()
        done(await reserve(world, "unsure", ("lost-decision", 1)), replay=True, status=200)
    await same_everywhere(world, "unsure", ("lost-decision", "RESERVED"))
    assert await ledger(world, "unsure") == [("lost-decision", Move.RESERVE)]


async def test_two_gateways_meet_an_unloaded_key_at_the_same_moment(world: World) -> None:
    """Cold keys of one unit each: both gateways load and ask at once, one buyer gets each."""
    keys = [f"cold {n}" for n in range(30)]
    await at_once([world.create_key(key, 1) for key in keys])
    await rebuild(world)
    read = [await balance(world, key, gateway) for key in keys for gateway in (0, 1)]
    assert {body["source"] for body in read} == {"mysql"}
    tries = [
        buy(world, key, f"cold-{number}-{gateway}-{copy}", 1, gateway)
        for number, key in enumerate(keys)
        for copy in range(2)
        for gateway in (0, 1)
    ]
    bought = await at_once(tries)
    assert len(accepted(bought)) == len(keys)
    assert {await quantities(world, key) for key in keys} == {(0, 1, 0, 0, 0)}
    await world.quiet()
    await check_stores(world)


async def test_a_loader_sleeps_between_its_steps_until_others_have_loaded_and_sold(world: World) -> None:
    """It read the key when all of it was there, and writes when nothing is left: it changes nothing."""
    await world.create_key("sleeper", 3)
    await world.create_key("warm-too", 1)
    async with redis_through_proxy(world, 0) as proxy:
        await rebuild(world)
        done(await reserve(world, "warm-too", ("warm-too", 1)), status=201)
        proxy.hold(lua.load("load_keys").sha.encode())
        async with asyncio.TaskGroup() as tasks:
            late = tasks.create_task(reserve(world, "sleeper-late", ("sleeper", 1)))

            async def sleeps() -> bool:
                return proxy.held == 1

            await world.until(sleeps, 5.0, "the loader has read and does not write")
            for number in range(3):
                done(await reserve(world, f"sleeper-{number}", ("sleeper", 1), gateway=1), status=201)
            proxy.restore()
        refused(late.result(), 409, "INSUFFICIENT_STOCK")
    assert await quantities(world, "sleeper") == (0, 3, 0, 0, 0)
    await world.quiet()
    await check_stores(world)


async def test_expiry_confirm_and_release_in_the_same_moment(world: World) -> None:
    """One end each, and every answer agrees with it."""
    count = 120
    await world.create_key("moment", count)

    async def play(number: int) -> tuple[str, str]:
        order_id = f"moment-{number}"
        reply = done(await reserve(world, order_id, ("moment", 1), gateway=number % 2, ttl_seconds=1), status=201)
        due = datetime.fromisoformat(reply["expires_at"]).timestamp()
        # From well before to well after the due time, most of them close to it.
        await asyncio.sleep(max(0.0, due + 0.4 * (number / count - 0.5) ** 3 * 8 - time.time()))
        confirm, release = await at_once(
            [
                move(world, order_id, "confirm", gateway=number % 2),
                move(world, order_id, "release", gateway=(number + 1) % 2),
            ]
        )
        if confirm.status_code == 200:
            done(confirm)
            refused(release, 409, "ILLEGAL_TRANSITION")
            return order_id, "CONFIRMED"
        if release.headers.get("idempotent-replay"):
            refused(confirm, 409, "HOLD_EXPIRED")
            assert done(release, replay=True)["lines"][0]["reason"] == "expired"
            return order_id, "expired"
        assert done(release)["lines"][0]["reason"] == "cancelled"
        refused(confirm, 409, "ILLEGAL_TRANSITION")
        return order_id, "cancelled"

    ends = dict(await at_once([play(number) for number in range(count)]))
    counts = Counter(ends.values())
    assert counts["expired"] > 0, counts
    assert counts["CONFIRMED"] + counts["cancelled"] > 0, counts
    sold = counts["CONFIRMED"]
    assert await quantities(world, "moment") == (count - sold, 0, sold, 0, 0)
    await world.quiet()
    rows = await world.query(
        "SELECT ref, kind, reason FROM inventory_ledger WHERE inventory_key = 'moment' AND kind <> %s", 8
    )
    told = {ref: "CONFIRMED" if kind == Move.CONFIRM else reason for ref, kind, reason in rows if kind != Move.RESERVE}
    assert told == ends
    assert len(rows) == 2 * count, "each order has one beginning and one end"
    await check_stores(world)


async def test_repeated_ids_in_one_request_of_operations(world: World) -> None:
    """Within a request a repeat replays what came before it; the same request twice over two gateways has one effect."""
    await world.create_key("batch", 10)

    def take(order_id: str, qty: int) -> dict[str, object]:
        return {"op": "reserve", "order_id": order_id, "lines": [{"inventory_key": "batch", "qty": qty}]}

    asked = [
        take("batch-1", 2),
        take("batch-1", 2),
        take("batch-1", 3),
        {"op": "confirm", "order_id": "batch-1"},
        {"op": "confirm", "order_id": "batch-1"},
        {"op": "release", "order_id": "batch-1", "reason": "cancelled"},
        take("batch-2", 9),
        {"op": "confirm", "order_id": "batch-2"},
    ]
    first = await operations(world, *asked)
    assert [(result["status"], result.get("replay", False)) for result in first] == [
        (201, False),
        (200, True),
        (409, False),
        (200, False),
        (200, True),
        (409, False),
        (409, False),
        (404, False),
    ]
    codes = [result["body"].get("code") for result in first]
    assert codes[2] == "ORDER_CONFLICT"
    assert codes[5:] == ["ILLEGAL_TRANSITION", "INSUFFICIENT_STOCK", "UNKNOWN_ORDER"]
    repeated = [take("batch-3", 1), take("batch-3", 1), {"op": "confirm", "order_id": "batch-3"}]
    both = await at_once([operations(world, *repeated, gateway=gateway) for gateway in (0, 1, 0, 1)])
    results = [result for results in both for result in results]
    assert {result["status"] for result in results} <= {200, 201, 409}
    assert sum(result["status"] == 201 for result in results) == 1
    assert all(result["body"]["code"] == "ORDER_CLOSED" for result in results if result["status"] == 409)
    assert await quantities(world, "batch") == (7, 0, 3, 0, 0)
    await world.quiet()
    for order_id in ("batch-1", "batch-3"):
        assert await ledger(world, order_id) == [("batch", Move.RESERVE), ("batch", Move.CONFIRM)]
    assert await ledger(world, "batch-2") == []
