"""The calls on orders, over TCP against a whole system: every answer, every refusal, replays, operations."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from client import Done, Refused
from stockgate.servers import Servers
from tests.integration.http_world import HttpWorld, held_open

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[HttpWorld]:
    directory: Path = tmp_path_factory.mktemp("http")
    async with held_open(servers, directory) as opened:
        yield opened


def lines(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"inventory_key": key, "qty": qty} for key, qty in pairs]


async def reserve(world: HttpWorld, order_id: str, *pairs: tuple[str, int], caller: str = "all", **more: Any) -> Any:
    body = {"order_id": order_id, "lines": lines(*pairs), **more}
    return await world.call("POST", "/v1/reservations", body, caller=caller)


async def move(world: HttpWorld, order_id: str, verb: str, body: Any = None, caller: str = "all") -> Any:
    return await world.call("POST", f"/v1/reservations/{order_id}/{verb}", body or {}, caller=caller)


def refused(reply: Any, status: int, code: str) -> dict[str, Any]:
    """The problem of a refusal, after looking at what every problem has."""
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/problem+json"
    body = reply.json()
    assert body["code"] == code
    assert body["status"] == status
    assert {"type", "title", "detail"} <= body.keys()
    assert body["instance"] == reply.headers["x-request-id"]
    assert "durability" not in reply.headers
    return body


async def test_a_new_order_is_reserved(world: HttpWorld) -> None:
    key = await world.stocked(10)
    reply = await reserve(world, "first", (key, 3), ttl_seconds=60, buyer_id="bob")
    assert reply.status_code == 201
    assert reply.headers["durability"] == "broker"
    assert "idempotent-replay" not in reply.headers
    body = reply.json()
    assert body["order_id"] == "first"
    assert body["status"] == "RESERVED"
    assert body["buyer_id"] == "bob"
    assert body["lines"] == [{"inventory_key": key, "qty": 3, "status": "RESERVED", "epoch": 1, "seq": 2}]
    assert body["expires_at"] > body["server_time"]
    assert await world.quantities(key) == (7, 3, 0, 0, 0)


async def test_a_repeat_is_a_replay_even_with_another_ttl(world: HttpWorld) -> None:
    key = await world.stocked(10)
    order_id = world.fresh("order")
    first = await reserve(world, order_id, (key, 3))
    again = await reserve(world, order_id, (key, 3), ttl_seconds=5)
    assert (again.status_code, again.headers["idempotent-replay"]) == (200, "true")
    assert again.headers["durability"] == "broker"
    assert again.json()["lines"] == first.json()["lines"]
    assert again.json()["expires_at"] == first.json()["expires_at"]
    assert await world.quantities(key) == (7, 3, 0, 0, 0)


async def test_two_lines_with_one_key_are_summed(world: HttpWorld) -> None:
    key = await world.stocked(10)
    other = await world.stocked(10)
    order_id = world.fresh("order")
    reply = await reserve(world, order_id, (key, 1), (other, 1), (key, 2))
    assert [(line["inventory_key"], line["qty"]) for line in reply.json()["lines"]] == [(key, 3), (other, 1)]
    assert (await reserve(world, order_id, (other, 1), (key, 3))).status_code == 200
    body = refused(await reserve(world, world.fresh("order"), (key, 999_999), (key, 2)), 422, "INVALID_REQUEST")
    assert body["errors"][0]["path"] == "$.lines"


async def test_all_lines_or_none(world: HttpWorld) -> None:
    plenty, short, shorter = await world.stocked(10), await world.stocked(2), await world.stocked(0)
    order_id = world.fresh("order")
    reply = await reserve(world, order_id, (plenty, 1), (short, 3), (shorter, 1))
    assert refused(reply, 409, "INSUFFICIENT_STOCK")["lines"] == [
        {"inventory_key": short, "requested": 3, "available": 2},
        {"inventory_key": shorter, "requested": 1, "available": 0},
    ]
    assert await world.quantities(plenty) == (10, 0, 0, 0, 0)
    refused(await world.call("GET", f"/v1/reservations/{order_id}"), 404, "UNKNOWN_ORDER")
    assert (await reserve(world, order_id, (plenty, 1))).status_code == 201, "a refused call leaves no trace"


async def test_an_unknown_key_is_named(world: HttpWorld) -> None:
    key = await world.stocked(1)
    reply = await reserve(world, world.fresh("order"), (key, 1), ("nobody knows this", 1))
    assert refused(reply, 404, "UNKNOWN_INVENTORY_KEY")["inventory_keys"] == ["nobody knows this"]
    assert await world.quantities(key) == (1, 0, 0, 0, 0)


async def test_another_order_under_the_same_id(world: HttpWorld) -> None:
    key, other = await world.stocked(10), await world.stocked(10)
    order_id = await world.reserved(key, 2, buyer_id="bob")
    body = refused(await reserve(world, order_id, (key, 3), (other, 1), buyer_id="bob"), 409, "ORDER_CONFLICT")
    assert body["differs"] == ["lines"]
    assert body["lines"] == [
        {"inventory_key": key, "requested": 3, "held": 2},
        {"inventory_key": other, "requested": 1, "held": 0},
    ]
    body = refused(await reserve(world, order_id, (key, 2), buyer_id="eve"), 409, "ORDER_CONFLICT")
    assert body["differs"] == ["buyer_id"]


async def test_the_life_of_an_order(world: HttpWorld) -> None:
    key = await world.stocked(10)
    order_id = await world.reserved(key, 4)
    confirmed = await move(world, order_id, "confirm")
    assert (confirmed.status_code, confirmed.json()["status"]) == (200, "CONFIRMED")
    assert confirmed.json()["expires_at"] is None
    assert confirmed.headers["durability"] == "broker"
    assert await world.quantities(key) == (6, 0, 4, 0, 0)
    again = await move(world, order_id, "confirm")
    assert again.headers["idempotent-replay"] == "true"
    assert again.json()["lines"] == confirmed.json()["lines"]
    body = refused(await move(world, order_id, "release", {"reason": "cancelled"}), 409, "ILLEGAL_TRANSITION")
    assert (body["order_status"], body["wanted"]) == ("CONFIRMED", "RELEASED")
    assert (await move(world, order_id, "consume")).json()["status"] == "CONSUMED"
    assert await world.quantities(key) == (6, 0, 0, 4, 0)
    refused(await move(world, order_id, "return", {"reason": "too late"}), 409, "ILLEGAL_TRANSITION")
    refused(await reserve(world, order_id, (key, 4)), 409, "ORDER_CLOSED")


async def test_release_and_return(world: HttpWorld) -> None:
    key = await world.stocked(10)
    released = await world.reserved(key, 4)
    reply = await move(world, released, "release", {"reason": "payment_failed"})
    assert reply.json()["lines"][0] | {"seq": 0, "epoch": 0} == {
        "inventory_key": key,
        "qty": 4,
        "status": "RELEASED",
        "reason": "payment_failed",
        "epoch": 0,
        "seq": 0,
    }
    assert (await move(world, released, "release", {"reason": "risk"})).headers["idempotent-replay"] == "true"
    refused(await move(world, released, "confirm"), 409, "ILLEGAL_TRANSITION")
    returned = await world.reserved(key, 5)
    await move(world, returned, "confirm")
    assert (await move(world, returned, "return", {"reason": "kein Interesse"})).json()["status"] == "RETURNED"
    assert await world.quantities(key) == (10, 0, 0, 0, 0)


async def test_extend_moves_the_due_time_and_never_back(world: HttpWorld) -> None:
    key = await world.stocked(10)
    order_id = await world.reserved(key, 1, ttl_seconds=60)
    later = await move(world, order_id, "extend", {"ttl_seconds": 600})
    assert later.status_code == 200
    earlier = await move(world, order_id, "extend", {"ttl_seconds": 10})
    assert earlier.headers["idempotent-replay"] == "true"
    assert earlier.json()["expires_at"] == later.json()["expires_at"]
    bound = world.settings.hold_ttl_max_s
    body = refused(await move(world, order_id, "extend", {"ttl_seconds": bound + 1}), 422, "INVALID_REQUEST")
    assert body["errors"] == [{"path": "$.ttl_seconds", "message": f"at most {bound} s here"}]
    refused(await reserve(world, world.fresh("o"), (key, 1), ttl_seconds=bound + 1), 422, "INVALID_REQUEST")


async def test_a_hold_that_ran_out_is_expired_for_everybody(world: HttpWorld) -> None:
    key = await world.stocked(10)
    order_id = await world.reserved(key, 4, ttl_seconds=1)
    await asyncio.sleep(1.2)
    body = refused(await move(world, order_id, "confirm"), 409, "HOLD_EXPIRED")
    assert body["lines"] == [{"inventory_key": key, "status": "RELEASED", "reason": "expired"}]
    refused(await move(world, order_id, "extend", {"ttl_seconds": 60}), 409, "HOLD_EXPIRED")
    assert await world.quantities(key) == (10, 0, 0, 0, 0)
    replay = await move(world, order_id, "release", {"reason": "cancelled"})
    assert replay.headers["idempotent-replay"] == "true"
    read = (await world.call("GET", f"/v1/reservations/{order_id}")).json()
    assert (read["status"], read["lines"][0]["reason"], read["expires_at"]) == ("RELEASED", "expired", None)


async def test_some_lines_of_an_order(world: HttpWorld) -> None:
    first, second, third = await world.stocked(5), await world.stocked(5), await world.stocked(5)
    order_id = world.fresh("order")
    await reserve(world, order_id, (first, 1), (second, 2), (third, 3))
    mixed = (await move(world, order_id, "confirm", {"lines": [first, second, first]})).json()
    assert mixed["status"] == "MIXED"
    assert [line["status"] for line in mixed["lines"]] == ["CONFIRMED", "CONFIRMED", "RESERVED"]
    assert mixed["expires_at"] is not None
    await move(world, order_id, "release", {"reason": "cancelled", "lines": [third]})
    await move(world, order_id, "consume", {"lines": [first]})
    end = (await move(world, order_id, "return", {"reason": "no", "lines": [second]})).json()
    assert [line["status"] for line in end["lines"]] == ["CONSUMED", "RETURNED", "RELEASED"]
    body = refused(await move(world, order_id, "consume", {"lines": ["not mine"]}), 422, "INVALID_REQUEST")
    assert "not mine" in body["errors"][0]["message"]
    assert body["errors"][0]["path"] == "$.lines"


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("confirm", {}),
        ("release", {"reason": "risk"}),
        ("consume", {}),
        ("return", {"reason": "x"}),
        ("extend", {"ttl_seconds": 5}),
    ],
)
async def test_an_unknown_order_is_unknown_to_every_call(world: HttpWorld, verb: str, body: Any) -> None:
    refused(await move(world, "never-was", verb, body), 404, "UNKNOWN_ORDER")


async def test_confirm_and_consume_need_no_body_at_all(world: HttpWorld) -> None:
    key = await world.stocked(1)
    order_id = await world.reserved(key, 1)
    assert (await world.call("POST", f"/v1/reservations/{order_id}/confirm", raw=b"")).status_code == 200
    assert (await world.call("POST", f"/v1/reservations/{order_id}/consume")).status_code == 200
    refused(await world.call("POST", f"/v1/reservations/{order_id}/release"), 400, "MALFORMED_JSON")


async def test_an_order_of_many_lines_is_one(world: HttpWorld) -> None:
    keys = [await world.stocked(2) for _ in range(60)]
    order_id = world.fresh("order")
    reply = await reserve(world, order_id, *[(key, 1) for key in keys])
    assert [line["inventory_key"] for line in reply.json()["lines"]] == keys
    assert (await move(world, order_id, "confirm")).json()["status"] == "CONFIRMED"
    read = (await world.call("GET", f"/v1/reservations/{order_id}")).json()
    assert len(read["lines"]) == 60


async def test_orders_of_two_tenants_do_not_meet(world: HttpWorld) -> None:
    key = await world.stocked(10)
    order_id = await world.reserved(key, 1)
    refused(await move(world, order_id, "confirm", caller="other_tenant"), 404, "UNKNOWN_ORDER")
    refused(await world.call("GET", f"/v1/reservations/{order_id}", caller="other_tenant"), 404, "UNKNOWN_ORDER")
    assert (await reserve(world, order_id, (key, 2), caller="other_tenant")).status_code == 201
    assert await world.quantities(key) == (7, 3, 0, 0, 0)


async def test_one_hundred_confirms_at_once_confirm_once(world: HttpWorld) -> None:
    key = await world.stocked(1)
    order_id = await world.reserved(key, 1)
    replies = await asyncio.gather(*(move(world, order_id, "confirm") for _ in range(100)))
    assert {reply.status_code for reply in replies} == {200}
    assert sum("idempotent-replay" not in reply.headers for reply in replies) == 1
    assert await world.quantities(key) == (0, 0, 1, 0, 0)


async def test_more_buyers_than_stock(world: HttpWorld) -> None:
    key = await world.stocked(20)
    replies = await asyncio.gather(*(reserve(world, world.fresh("buyer"), (key, 1)) for _ in range(60)))
    assert sorted(reply.status_code for reply in replies) == [201] * 20 + [409] * 40
    assert await world.quantities(key) == (0, 20, 0, 0, 0)


# --- operations ---------------------------------------------------------------------------------------------------------


async def operations(world: HttpWorld, *asked: Any, caller: str = "all") -> Any:
    reply = await world.call("POST", "/v1/operations", {"operations": list(asked)}, caller=caller)
    assert reply.status_code == 200, reply.text
    return reply.json()["results"]


async def test_operations_keep_their_order(world: HttpWorld) -> None:
    key = await world.stocked(10)
    order_id = world.fresh("order")
    op: dict[str, Any] = {"order_id": order_id}
    results = await operations(
        world,
        {"op": "confirm", **op},
        {"op": "reserve", **op, "lines": lines((key, 2))},
        {"op": "reserve", **op, "lines": lines((key, 2))},
        {"op": "extend", **op, "ttl_seconds": 1000},
        {"op": "confirm", **op},
        {"op": "release", **op, "reason": "cancelled"},
        {"op": "consume", **op},
        {"op": "return", **op, "reason": "x"},
    )
    assert [result["status"] for result in results] == [404, 201, 200, 200, 200, 409, 200, 409]
    assert [result.get("replay", False) for result in results] == [False, False, True, *[False] * 5]
    assert [result["body"].get("code") for result in results if result["status"] >= 400] == [
        "UNKNOWN_ORDER",
        "ILLEGAL_TRANSITION",
        "ILLEGAL_TRANSITION",
    ]
    assert results[6]["body"]["status"] == "CONSUMED"


async def test_operations_are_independent(world: HttpWorld) -> None:
    key = await world.stocked(10)
    good, more = world.fresh("order"), world.fresh("order")
    results = await operations(
        world,
        {"op": "reserve", "order_id": good, "lines": lines((key, 2))},
        {"op": "reserve", "order_id": "has space", "lines": lines((key, 2))},
        {"op": "nonsense"},
        {"op": "reserve", "order_id": world.fresh("order"), "lines": lines((key, 100))},
        7,
        {"op": "confirm", "order_id": good, "reacquire": True},
        {"op": "extend", "order_id": good, "ttl_seconds": 10**7},
        {"op": "reserve", "order_id": more, "lines": lines((key, 3))},
    )
    assert [result["status"] for result in results] == [201, 422, 422, 409, 422, 422, 422, 201]
    assert await world.quantities(key) == (5, 5, 0, 0, 0)


async def test_500_operations_and_no_more(world: HttpWorld) -> None:
    key = await world.stocked(1000)
    asked = [{"op": "reserve", "order_id": world.fresh("order"), "lines": lines((key, 1))} for _ in range(500)]
    results = await operations(world, *asked)
    assert [result["status"] for result in results] == [201] * 500
    seqs = [result["body"]["lines"][0]["seq"] for result in results]
    assert seqs == sorted(seqs)
    too_many = await world.call("POST", "/v1/operations", {"operations": [*asked, asked[0]]})
    assert refused(too_many, 422, "INVALID_REQUEST")["errors"][0]["path"] == "$.operations"
    refused(await world.call("POST", "/v1/operations", {"operations": []}), 422, "INVALID_REQUEST")


async def test_operations_with_more_lines_than_one_call_can_hold(world: HttpWorld) -> None:
    keys = [await world.stocked(50) for _ in range(40)]
    asked = [
        {"op": "reserve", "order_id": world.fresh("order"), "lines": lines(*((key, 1) for key in keys))}
        for _ in range(30)
    ]
    results = await operations(world, *asked)
    assert [result["status"] for result in results] == [201] * 30
    assert await world.quantities(keys[0]) == (20, 30, 0, 0, 0)


async def test_a_name_twice_within_one_operation_is_its_own_mistake(world: HttpWorld) -> None:
    key = await world.stocked(5)
    good = json.dumps({"op": "reserve", "order_id": world.fresh("o"), "lines": lines((key, 1))})
    twice = '{"op":"confirm","order_id":"a","order_id":"b"}'
    raw = f'{{"operations":[{twice},{good}]}}'.encode()
    results = (await world.call("POST", "/v1/operations", raw=raw)).json()["results"]
    assert [(result["status"], result["body"].get("code")) for result in results] == [
        (400, "MALFORMED_JSON"),
        (201, None),
    ]


# --- a caller confined to a prefix --------------------------------------------------------------------------------------


async def test_a_prefix_confines_reserves(world: HttpWorld) -> None:
    mine = await world.stocked(10, "shop-a/" + world.fresh("k"))
    foreign = await world.stocked(10)
    refused(await reserve(world, world.fresh("o"), (mine, 1), (foreign, 1), caller="confined"), 403, "FORBIDDEN")
    order_id = world.fresh("o")
    assert (await reserve(world, order_id, (mine, 1), caller="confined")).status_code == 201
    assert (await move(world, order_id, "confirm", caller="confined")).status_code == 200
    reply = await move(world, order_id, "consume", {"lines": [foreign]}, caller="confined")
    refused(reply, 403, "FORBIDDEN")


async def test_orders_with_lines_outside_the_prefix_are_unknown(world: HttpWorld) -> None:
    mine = await world.stocked(10, "shop-a/" + world.fresh("k"))
    foreign = await world.stocked(10)
    order_id = world.fresh("o")
    await reserve(world, order_id, (mine, 1), (foreign, 1))
    for verb, body in (("confirm", {}), ("release", {"reason": "risk"}), ("extend", {"ttl_seconds": 9999})):
        refused(await move(world, order_id, verb, body, caller="confined"), 404, "UNKNOWN_ORDER")
    refused(await move(world, order_id, "confirm", {"lines": [mine]}, caller="confined"), 404, "UNKNOWN_ORDER")
    refused(await world.call("GET", f"/v1/reservations/{order_id}", caller="confined"), 404, "UNKNOWN_ORDER")
    body = refused(await reserve(world, order_id, (mine, 1), caller="confined"), 409, "ORDER_CONFLICT")
    assert foreign not in str(body)
    assert await world.quantities(foreign) == (9, 1, 0, 0, 0)


async def test_operations_of_a_confined_caller(world: HttpWorld) -> None:
    mine = await world.stocked(10, "shop-a/" + world.fresh("k"))
    foreign = await world.stocked(10)
    other = await world.reserved(foreign, 1)
    order_id = world.fresh("o")
    results = await operations(
        world,
        {"op": "reserve", "order_id": order_id, "lines": lines((mine, 1))},
        {"op": "confirm", "order_id": order_id},
        {"op": "confirm", "order_id": other},
        {"op": "reserve", "order_id": world.fresh("o"), "lines": lines((foreign, 1))},
        caller="confined",
    )
    assert [result["status"] for result in results] == [201, 200, 404, 403]


# --- the client -----------------------------------------------------------------------------------------------------------


async def test_the_client_against_the_real_thing(world: HttpWorld) -> None:
    key = await world.stocked(5)
    order_id = world.fresh("client")
    async with world.client() as client:
        held = await client.reserve(order_id, {key: 2}, buyer_id="b")
        assert isinstance(held, Done)
        assert held.value.expires_at is not None
        short = await client.reserve(world.fresh("client"), {key: 9})
        assert isinstance(short, Refused)
        assert short.problem.lines[0].available == 3
        assert isinstance(await client.extend(order_id, 1000), Done)
        assert isinstance(await client.confirm(order_id), Done)
        assert isinstance(await client.consume(order_id), Done)
        read = await client.order(order_id)
        assert isinstance(read, Done)
        assert read.value.status == "CONSUMED"
        status = await client.status()
        assert status.shards[0].mode == "hot"
