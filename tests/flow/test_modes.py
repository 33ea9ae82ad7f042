"""Redis and MySQL take turns in deciding, under load, with Redis alive and dead: nothing lost, nothing sold twice."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from inventory.moves import Move
from tests.flow.asking import balance, ledger, move, quantities, refused, reserve, status, stockgate
from tests.flow.test_servers import load_on
from tests.flow.wire import WireReply
from tests.flow.world import World

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

SWITCH_LIMIT_S = 20.0
SOLD_AGAIN_S = 10.0


async def ask_mode(world: World, method: str, path: str, body: Any = None, scope: str = "ops") -> WireReply:
    return await world.wire.call(method, world.gateways[0].port, path, world.headers(scope), body)


async def switch(world: World, to_mode: str, reason: str = "a test") -> dict[str, Any]:
    """Switch, and wait until it is done; the switch as it is shown then."""
    begun = await ask_mode(world, "PUT", "/ops/mode", {"mode": to_mode, "reason": reason})
    assert begun.status_code == 202, begun.text

    async def done() -> bool:
        shown = (await ask_mode(world, "GET", "/ops/mode")).json()
        return shown["mode"] == to_mode and shown["switch"] is None

    await world.until(done, SWITCH_LIMIT_S, f"mode {to_mode}")
    shown = (await ask_mode(world, "GET", "/ops/mode")).json()
    assert shown["last_switch"]["id"] == begun.json()["switch"]
    assert shown["last_switch"]["status"] == "DONE"
    return shown


async def until_durable(world: World, order_id: str, key: str, durability: str) -> WireReply:
    """One order, repeated with its id until it is answered; gateways hear of the mode by and by."""
    async with asyncio.timeout(SOLD_AGAIN_S):
        while True:
            reply = await reserve(world, order_id, (key, 1))
            if reply.is_success:
                break
            assert reply.status_code == 503, reply.text
            await asyncio.sleep(0.05)
    assert reply.headers["durability"] == durability, reply.headers
    return reply


async def test_hot_db_hot_under_load(world: World) -> None:
    await world.create_key("turns", 10)
    before = (await until_durable(world, "turns-1", "turns", "broker")).json()
    async with load_on(world, "turns-load") as load:
        shown = await switch(world, "db")
        assert [step["step"] for step in shown["last_switch"]["steps"]] == ["fence", "drain", "close", "closed"]
        await load.until_answered(60, SOLD_AGAIN_S)
        between = (await until_durable(world, "turns-2", "turns", "mysql")).json()
        assert (await balance(world, "turns"))["source"] == "mysql"
        many = await world.post("/v1/operations", {"operations": [{"op": "confirm", "order_id": "turns-1"}]})
        assert (many.json()["results"][0]["status"], many.headers["durability"]) == (200, "mysql"), many.text
        # What Redis decided can be carried on by MySQL, and is there for its repeat.
        confirmed = await move(world, "turns-1", "confirm")
        assert (confirmed.status_code, confirmed.headers["durability"]) == (200, "mysql"), confirmed.text
        shown = await switch(world, "hot")
        assert [step["step"] for step in shown["last_switch"]["steps"]] == ["lock", "open", "unfence"]
        await load.until_answered(60, SOLD_AGAIN_S)
        after = (await until_durable(world, "turns-3", "turns", "broker")).json()
    # And the other way round.
    assert (await move(world, "turns-2", "confirm")).status_code == 200
    assert await quantities(world, "turns") == (7, 1, 2, 0, 0)
    names = [(one["lines"][0]["epoch"], one["lines"][0]["seq"]) for one in (before, between, after)]
    assert names == sorted(names), "a later answer has a greater (epoch, seq), whoever decided"
    assert len({epoch for epoch, _ in names}) == 3
    await world.quiet()
    assert await ledger(world, "turns-2") == [("turns", Move.RESERVE), ("turns", Move.CONFIRM)]
    assert (await stockgate(world, "audit"))["ok"]


async def test_mysql_decides_while_redis_is_dead(world: World) -> None:
    await world.create_key("no-redis", 10)
    held = await until_durable(world, "no-redis-1", "no-redis", "broker")
    assert held.status_code == 201
    async with load_on(world, "no-redis-load") as load:
        await world.servers.redis.kill()
        shown = await switch(world, "db", "Redis is dead")
        assert shown["last_switch"]["reason"] == "Redis is dead"
        await load.until_answered(60, SOLD_AGAIN_S)
        await until_durable(world, "no-redis-2", "no-redis", "mysql")
        replay = await reserve(world, "no-redis-1", ("no-redis", 1))
        assert (replay.status_code, replay.headers["idempotent-replay"]) == (200, "true"), replay.text
        assert (await ask_mode(world, "GET", "/health/ready")).status_code == 200
        explained = await ask_mode(world, "GET", f"/ops/inventory/{quote('no-redis')}/explain")
        assert explained.json()["class"] == "decided_by_mysql", explained.text
        await world.servers.redis.start()
        await switch(world, "hot")
        await load.until_answered(60, SOLD_AGAIN_S)
    assert await quantities(world, "no-redis") == (8, 2, 0, 0, 0)


async def test_holds_expire_while_mysql_decides(world: World) -> None:
    await world.create_key("short", 5)
    await switch(world, "db")
    reply = await reserve(world, "short-1", ("short", 2), ttl_seconds=1)
    assert reply.status_code == 201, reply.text

    async def given_back() -> bool:
        return await quantities(world, "short") == (5, 0, 0, 0, 0)

    await world.until(given_back, 10.0, "the hold has expired")
    assert refused(await move(world, "short-1", "confirm"), 409, "HOLD_EXPIRED")
    await switch(world, "hot")
    assert refused(await move(world, "short-1", "confirm"), 409, "HOLD_EXPIRED")


async def test_what_is_wrong_with_a_switch_is_said_and_changes_nothing(world: World) -> None:
    epoch = (await world.shard())["epoch"]
    for body in (
        {"mode": "db"},
        {"mode": "db", "reason": ""},
        {"mode": "cold", "reason": "x"},
        {"mode": "db", "reason": "x", "shard": 7},
    ):
        assert refused(await ask_mode(world, "PUT", "/ops/mode", body), 422, "INVALID_REQUEST")
    assert refused(
        await ask_mode(world, "PUT", "/ops/mode", {"mode": "db", "reason": "x"}, scope="orders"), 403, "FORBIDDEN"
    )
    assert refused(await ask_mode(world, "DELETE", "/ops/mode/switch"), 422, "INVALID_REQUEST")
    assert refused(await ask_mode(world, "DELETE", "/ops/mode/switch?reason=x"), 404, "NO_SWITCH")
    already = await ask_mode(world, "PUT", "/ops/mode", {"mode": "hot", "reason": "as it is"})
    assert (already.status_code, already.json()) == (200, {"switch": None})
    assert (await world.shard())["epoch"] == epoch
    # While the worker is away CLOSE has no effect: the switch runs, and may not be given up any more.
    await world.worker.kill()
    begun = await ask_mode(world, "PUT", "/ops/mode", {"mode": "db", "reason": "once"})
    assert begun.status_code == 202, begun.text
    twice = await ask_mode(world, "PUT", "/ops/mode", {"mode": "db", "reason": "twice"})
    assert refused(twice, 409, "SWITCH_RUNNING")["switch"] == begun.json()["switch"]

    async def closing() -> bool:
        shown = (await ask_mode(world, "GET", "/ops/mode")).json()
        return "close" in [step["step"] for step in (shown["switch"] or {"steps": []})["steps"]]

    await world.until(closing, SWITCH_LIMIT_S, "CLOSE is published")
    assert (await ask_mode(world, "GET", "/ops/mode")).json()["mode"] == "closing"
    assert refused(await ask_mode(world, "DELETE", "/ops/mode/switch?reason=late"), 409, "SWITCH_TOO_LATE")
    world.worker.spawn()

    async def is_db() -> bool:
        return (await ask_mode(world, "GET", "/ops/mode")).json()["mode"] == "db"

    await world.until(is_db, SWITCH_LIMIT_S, "db")
    result = await stockgate(world, "mode", "hot", "--reason", "back")
    assert (result["ok"], result["mode"]) == (True, "hot"), result
    done = (await ask_mode(world, "GET", "/ops/actions")).json()["actions"]
    assert {action["action"] for action in done} >= {"switch_to_db", "switch_to_hot"}
    assert (await status(world))["mode"] == "hot"
