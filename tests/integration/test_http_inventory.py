"""The calls on keys and the operators' calls, over TCP against a whole system."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio

from client import Done, Refused
from stockgate.servers import Servers
from tests.integration.http_world import HttpWorld, held_open
from tests.integration.test_http_reservations import move, refused

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[HttpWorld]:
    async with held_open(servers, tmp_path_factory.mktemp("http")) as opened:
        yield opened


def creation(world: HttpWorld, key: str = "", **changed: Any) -> dict[str, Any]:
    return {
        "inventory_key": key or world.fresh("key"),
        "item_id": "item-1",
        "inventory_mode": "QTY",
        "init_quantity": 10,
        "request_no": world.fresh("create"),
        **changed,
    }


async def create(world: HttpWorld, body: dict[str, Any], caller: str = "all") -> Any:
    return await world.call("POST", "/v1/inventory", body, caller=caller)


async def change(world: HttpWorld, key: str, verb: str, body: dict[str, Any], caller: str = "all") -> Any:
    return await world.call("POST", f"/v1/inventory/{quote(key, safe='')}/{verb}", body, caller=caller)


async def adjusted(world: HttpWorld, key: str, delta: int, **more: Any) -> Any:
    body = {"delta": delta, "request_no": world.fresh("r"), "reason": "x"}
    return await change(world, key, "adjust", body | more)


async def test_a_key_is_created_with_its_first_quantity(world: HttpWorld) -> None:
    body = creation(world)
    reply = await create(world, body)
    assert reply.status_code == 201
    assert reply.headers["durability"] == "broker"
    key = body["inventory_key"]
    expected = {
        "inventory_key": key,
        "inventory_mode": "QTY",
        "init_status": "READY",
        "available": 10,
        "reserved": 0,
        "sold": 0,
        "consumed": 0,
        "locked": 0,
        "total": 10,
        "epoch": 1,
        "seq": 1,
        "inventory_version": 1,
        "source": "redis",
    }
    assert reply.json() == expected
    again = await create(world, body)
    assert (again.status_code, again.headers["idempotent-replay"]) == (200, "true")
    assert (await world.call("GET", f"/v1/inventory/{key}")).json() == expected


async def test_a_key_with_nothing_in_it(world: HttpWorld) -> None:
    body = creation(world)
    del body["init_quantity"]
    reply = await create(world, body)
    assert (reply.status_code, reply.json()["total"], reply.json()["source"]) == (201, 0, "mysql")
    assert reply.headers["durability"] == "mysql"
    again = await create(world, body)
    assert (again.status_code, again.headers["idempotent-replay"]) == (200, "true")
    assert (await create(world, body | {"init_quantity": 0})).status_code == 200, "0 is what absent means"


@pytest.mark.parametrize("changed", [{"init_quantity": 11}, {"item_id": "item-2"}, {"request_no": "another"}])
async def test_another_body_under_the_same_key_conflicts(world: HttpWorld, changed: dict[str, Any]) -> None:
    body = creation(world)
    await create(world, body)
    refused(await create(world, body | changed), 409, "REQUEST_CONFLICT")
    assert await world.quantities(body["inventory_key"]) == (10, 0, 0, 0, 0)


async def test_another_key_under_the_same_request_number_conflicts_and_leaves_no_trace(world: HttpWorld) -> None:
    body = creation(world)
    await create(world, body)
    other = world.fresh("key")
    refused(await create(world, body | {"inventory_key": other}), 409, "REQUEST_CONFLICT")
    refused(await world.call("GET", f"/v1/inventory/{other}"), 404, "UNKNOWN_INVENTORY_KEY")
    rival = await create(world, creation(world, request_no=body["request_no"]), caller="all")
    refused(rival, 409, "REQUEST_CONFLICT")


async def test_creation_and_adjustment_have_request_numbers_of_their_own(world: HttpWorld) -> None:
    body = creation(world)
    await create(world, body)
    reply = await change(
        world, body["inventory_key"], "adjust", {"delta": 5, "request_no": body["request_no"], "reason": "delivery"}
    )
    assert (reply.status_code, reply.json()["available"]) == (200, 15)


async def test_twenty_creations_of_one_key_at_once_create_it_once(world: HttpWorld) -> None:
    body = creation(world)
    replies = await asyncio.gather(*(create(world, body) for _ in range(20)))
    assert {reply.status_code for reply in replies} <= {200, 201}
    assert sum(reply.status_code == 201 for reply in replies) == 1
    assert await world.quantities(body["inventory_key"]) == (10, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "changed",
    [
        {"inventory_mode": "SYS_GEN"},
        {"inventory_mode": "EXT_POOL"},
        {"init_quantity": -1},
        {"init_quantity": 2**53},
        {"per_buyer_limit": 2},
        {"sale_opens_at": "2026-12-01T00:00:00Z"},
        {"voucher_rule": {}},
    ],
)
async def test_what_a_creation_may_not_say(world: HttpWorld, changed: dict[str, Any]) -> None:
    body = creation(world, **changed)
    refused(await create(world, body), 422, "INVALID_REQUEST")
    refused(await world.call("GET", f"/v1/inventory/{body['inventory_key']}"), 404, "UNKNOWN_INVENTORY_KEY")


async def test_adjust_lock_unlock(world: HttpWorld) -> None:
    key = await world.stocked(10)
    reply = await adjusted(world, key, -3, approval_no="A-7")
    assert reply.json() == {
        "inventory_key": key,
        "available": 7,
        "reserved": 0,
        "sold": 0,
        "consumed": 0,
        "locked": 0,
        "total": 7,
        "epoch": 1,
        "seq": 2,
        "inventory_version": 2,
    }
    assert reply.headers["durability"] == "broker"
    lock = {"qty": 5, "request_no": world.fresh("r"), "reason": "damaged"}
    locked = await change(world, key, "lock", lock)
    assert (locked.json()["available"], locked.json()["locked"], locked.json()["total"]) == (2, 5, 7)
    replay = await change(world, key, "lock", lock)
    assert replay.headers["idempotent-replay"] == "true"
    assert replay.json() == locked.json()
    unlock = {"qty": 2, "request_no": world.fresh("r"), "reason": "found again"}
    assert (await change(world, key, "unlock", unlock)).json()["locked"] == 3
    assert await world.quantities(key) == (4, 0, 0, 0, 3)


async def test_a_replay_shows_the_quantities_of_then(world: HttpWorld) -> None:
    key = await world.stocked(10)
    body = {"delta": 5, "request_no": world.fresh("r"), "reason": "delivery"}
    first = await change(world, key, "adjust", body)
    await adjusted(world, key, 100)
    replay = await change(world, key, "adjust", body | {"reason": "said otherwise", "base_inventory_version": 99})
    assert replay.headers["idempotent-replay"] == "true"
    assert replay.json() == first.json()


async def test_refusals_of_changes(world: HttpWorld) -> None:
    key = await world.stocked(10)
    request_no = world.fresh("r")
    await change(world, key, "adjust", {"delta": 1, "request_no": request_no, "reason": "x"})
    refused(
        await change(world, key, "adjust", {"delta": 2, "request_no": request_no, "reason": "x"}),
        409,
        "REQUEST_CONFLICT",
    )
    refused(
        await change(world, key, "lock", {"qty": 1, "request_no": request_no, "reason": "x"}), 409, "REQUEST_CONFLICT"
    )
    body = refused(await adjusted(world, key, 1, base_inventory_version=1), 409, "VERSION_CONFLICT")
    assert body["inventory_version"] == 2
    assert (await adjusted(world, key, 1, base_inventory_version=2)).status_code == 200
    short = refused(await adjusted(world, key, -13), 409, "INSUFFICIENT_STOCK")
    assert short["lines"] == [{"inventory_key": key, "requested": 13, "available": 12}]
    qty = {"qty": 13, "request_no": world.fresh("r"), "reason": "x"}
    refused(await change(world, key, "lock", qty), 409, "INSUFFICIENT_STOCK")
    refused(await change(world, key, "unlock", {**qty, "request_no": world.fresh("r")}), 409, "INSUFFICIENT_STOCK")
    refused(await adjusted(world, key, 2**52), 409, "QUANTITY_LIMIT")
    refused(await adjusted(world, "nobody knows this", 1), 404, "UNKNOWN_INVENTORY_KEY")
    assert await world.quantities(key) == (12, 0, 0, 0, 0)


async def test_a_sale_makes_no_edit_conflict(world: HttpWorld) -> None:
    key = await world.stocked(10)
    order_id = await world.reserved(key, 1)
    await move(world, order_id, "confirm")
    assert (await adjusted(world, key, 1, base_inventory_version=1)).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"delta": 0, "request_no": "r", "reason": "x"},
        {"delta": 1, "request_no": "r"},
        {"delta": 1, "reason": "x"},
        {"delta": 1, "request_no": "has space", "reason": "x"},
        {"delta": 1, "request_no": "r", "reason": "x" * 195, "approval_no": "A-1234567"},
    ],
)
async def test_what_an_adjustment_must_say(world: HttpWorld, body: dict[str, Any]) -> None:
    key = await world.stocked(1)
    refused(await change(world, key, "adjust", body), 422, "INVALID_REQUEST")


KEYS = [
    "a b  c",
    "a/b/c",
    "{sg:0}:1:head",
    "100%",
    "query",
    ".",
    "..",
    "a?b#c&d=e",
    "x" * 128,
    "sku-1001@store-7@2026-12-24",
    "'\"\\`;--",
]


@pytest.mark.parametrize("key", KEYS)
async def test_keys_of_every_kind(world: HttpWorld, key: str) -> None:
    await world.stocked(5, key)
    async with world.client() as client:
        read = await client.inventory(key)
        assert isinstance(read, Done)
        assert read.value.inventory_key == key
        assert isinstance(await client.adjust(key, 2, request_no=world.fresh("r"), reason="x"), Done)
        assert isinstance(await client.lock(key, 1, request_no=world.fresh("r"), reason="x"), Done)
        assert isinstance(await client.unlock(key, 1, request_no=world.fresh("r"), reason="x"), Done)
        assert isinstance(await client.reserve(world.fresh("o"), {key: 3}), Done)
        (queried,) = await client.query_inventory([key])
        assert isinstance(queried, Done)
        assert (queried.value.available, queried.value.reserved) == (4, 3)


async def test_keys_that_differ_in_case_or_spaces_are_two(world: HttpWorld) -> None:
    stem = world.fresh("Key")
    for number, key in enumerate((stem, stem.lower(), stem + " 1", stem + "  1"), start=1):
        await world.stocked(number, key)
    assert await world.quantities(stem.lower()) == (2, 0, 0, 0, 0)
    assert await world.quantities(stem + "  1") == (4, 0, 0, 0, 0)


@pytest.mark.parametrize("path", ["%20a", "a%20", "a%0A", "%C3%A9", "a" * 129, "%FF"])
async def test_a_path_with_no_possible_key(world: HttpWorld, path: str) -> None:
    refused(await world.call("GET", f"/v1/inventory/{path}"), 422, "INVALID_REQUEST")


async def test_a_query_answers_in_order_with_what_is_unknown(world: HttpWorld) -> None:
    key = await world.stocked(3)
    reply = await world.call("POST", "/v1/inventory/query", {"inventory_keys": ["no such", key, key]}, caller="orders")
    results = reply.json()["results"]
    assert [result["status"] for result in results] == [404, 200, 200]
    assert results[0]["body"]["code"] == "UNKNOWN_INVENTORY_KEY"
    assert results[1]["body"]["available"] == 3
    refused(
        await world.call("POST", "/v1/inventory/query", {"inventory_keys": [f"k{n}" for n in range(501)]}),
        422,
        "INVALID_REQUEST",
    )
    many = await world.call("POST", "/v1/inventory/query", {"inventory_keys": [f"k{n}" for n in range(499)] + [key]})
    assert [result["status"] for result in many.json()["results"]] == [404] * 499 + [200]


async def test_a_prefix_confines_keys(world: HttpWorld) -> None:
    refused(await create(world, creation(world), "confined"), 403, "FORBIDDEN")
    mine = "shop-a/" + world.fresh("k")
    assert (await create(world, creation(world, mine), "confined")).status_code == 201
    foreign = await world.stocked(1)
    body = {"delta": 1, "request_no": world.fresh("r"), "reason": "x"}
    refused(await change(world, foreign, "adjust", body, "confined"), 403, "FORBIDDEN")
    refused(await world.call("GET", f"/v1/inventory/{foreign}", caller="confined"), 403, "FORBIDDEN")
    keys = {"inventory_keys": [mine, foreign]}
    refused(await world.call("POST", "/v1/inventory/query", keys, caller="confined"), 403, "FORBIDDEN")
    assert (await change(world, mine, "adjust", body, "confined")).status_code == 200


# --- operators --------------------------------------------------------------------------------------------------------------


async def test_the_total_is_the_sum_of_adjustments_in_both_stores(world: HttpWorld) -> None:
    key = await world.stocked(10)
    await adjusted(world, key, -4)
    await adjusted(world, key, 7)
    await world.reserved(key, 2)
    await world.settled()
    shown = await world.servers.mariadb.execute(
        f"SELECT b.total, b.available, SUM(CASE WHEN l.kind = 8 THEN l.qty END) FROM "
        f"{database(world)}.inventory_balance b JOIN {database(world)}.inventory_ledger l USING (inventory_key) "
        f"WHERE b.inventory_key = '{key}' GROUP BY 1, 2"
    )
    assert shown.split()[-3:] == ["13", "11", "13"]


def database(world: HttpWorld) -> str:
    return world.settings.mysql_url.get_secret_value().rpartition("/")[2]


async def test_the_ledger_says_who_and_why_and_under_which_trace(world: HttpWorld) -> None:
    key = await world.stocked(10)
    trace = "0af7651916cd43dd8448eb211c80319c"
    order_id = world.fresh("traced")
    body = {"order_id": order_id, "lines": [{"inventory_key": key, "qty": 1}]}
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    assert (await world.call("POST", "/v1/reservations", body, headers=headers)).status_code == 201
    assert (await adjusted(world, key, 1, reason="délivré", approval_no="A-7")).status_code == 200
    await world.settled()
    rows = await world.servers.mariadb.execute(
        f"SELECT trace_id, actor, tenant FROM {database(world)}.inventory_ledger WHERE ref = '{order_id}'"
    )
    assert rows.split()[-3:] == [trace, "all", "acme"]
    rows = await world.servers.mariadb.execute(
        f"SELECT HEX(reason) FROM {database(world)}.inventory_ledger WHERE inventory_key = '{key}' AND seq = 3"
    )
    assert bytes.fromhex(rows.split()[-1]).decode() == "délivré (approval A-7)"


async def test_status_says_how_the_shard_stands(world: HttpWorld) -> None:
    await world.settled()
    body = (await world.call("GET", "/ops/status", caller="ops")).json()
    (shard,) = body["shards"]
    assert (shard["mode"], shard["epoch"], shard["leader"]) == ("hot", 1, {"term": 1, "present": True, "here": True})
    assert shard["log_head_m"] == shard["confirmed_m"] == shard["applied_m"] > 0
    assert (shard["persist_lag_entries"], shard["persist_lag_seconds"], shard["queue_depth"]) == (0, 0.0, 0)
    assert (shard["held_keys"], shard["parked_events"], shard["stale_entries"]) == (0, 0, 0)
    assert shard["worker_attached"] is True
    assert shard["missing"] == []
    assert (body["gateways"], body["drift_found"], body["drift_repaired"]) == (1, 0, 0)


async def test_the_audit_finds_nothing_to_say(world: HttpWorld) -> None:
    await world.settled()
    body = (await world.call("GET", "/ops/audit", caller="ops")).json()
    assert body["ok"], body
    assert all(check["ok"] and check["violations"] == [] for check in body["checks"])
    assert sum(check["checked"] for check in body["checks"]) > 100


async def test_a_comparison_is_left_for_the_reconciler(world: HttpWorld) -> None:
    reply = await world.call("POST", "/ops/reconcile", {"keys": ["a"], "dry_run": True}, caller="ops")
    assert reply.status_code == 202
    task = (await world.call("GET", f"/ops/reconcile/{reply.json()['id']}", caller="ops")).json()
    assert (task["status"], task["scope"], task["dry_run"], task["requested_by"]) == ("PENDING", "keys", True, "ops")
    refused(await world.call("GET", "/ops/reconcile/999999", caller="ops"), 404, "UNKNOWN_TASK")
    refused(await world.call("GET", "/ops/reconcile/one", caller="ops"), 422, "INVALID_REQUEST")


async def test_the_client_refuses_as_a_value(world: HttpWorld) -> None:
    async with world.client("inventory") as client:
        assert isinstance(await client.inventory("no such"), Refused)
        body = creation(world)
        made = await client.create_inventory(
            body["inventory_key"], item_id="i", init_quantity=4, request_no=body["request_no"]
        )
        assert isinstance(made, Done)
        assert (made.value.available, made.replay, made.status) == (4, False, 201)
