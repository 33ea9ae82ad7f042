"""Explanations through the API and the command line, of what real processes did."""

import asyncio
import io
import json
import os
import sys
from collections.abc import AsyncGenerator
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from rich.console import Console

from inventory.explain_key import explain_key
from kernel.limits import EXACT_INTEGER_MAX
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys
from kernel.settings import Settings
from stockgate.explain_command import run, sections
from stockgate.sections import show
from stockgate.servers import Servers
from tests.integration.http_world import HttpWorld, held_open
from tests.integration.test_http_reservations import refused

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST, SECOND = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b74bf92f3577b34da6"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[HttpWorld]:
    async with held_open(servers, tmp_path_factory.mktemp("explain")) as opened:
        yield opened


def traced(trace_id: str) -> dict[str, str]:
    return {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-01"}


async def explained(world: HttpWorld, path: str, caller: str = "ops") -> dict[str, Any]:
    reply = await world.call("GET", path, caller=caller)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def key_explained(world: HttpWorld, key: str, query: str = "") -> dict[str, Any]:
    return await explained(world, f"/ops/inventory/{quote(key, safe='')}/explain{query}")


async def command(settings: Settings, **asked: Any) -> int:
    """`stockgate explain`, which has an event loop of its own."""
    named: dict[str, Any] = {
        "key": None,
        "order": None,
        "tenant": "acme",
        "limit": 50,
        "page": "",
        "as_json": True,
        **asked,
    }
    return await asyncio.to_thread(run, settings, **named)


async def bought(world: HttpWorld) -> tuple[str, str, str]:
    """Two keys, and an order of both that was confirmed; MySQL has all of it."""
    key, other = await world.stocked(10, world.fresh("sku /{x}")), await world.stocked(10)
    order_id = world.fresh("order")
    lines = [{"inventory_key": key, "qty": 2}, {"inventory_key": other, "qty": 3}]
    body = {"order_id": order_id, "lines": lines, "buyer_id": "ada"}
    reply = await world.call("POST", "/v1/reservations", body, caller="orders", headers=traced(FIRST))
    assert reply.status_code == 201
    path = f"/v1/reservations/{order_id}/confirm"
    assert (await world.call("POST", path, {}, caller="all", headers=traced(SECOND))).status_code == 200
    await world.settled()
    return key, other, order_id


async def test_a_key_tells_who_when_and_why(world: HttpWorld) -> None:
    key, _, order_id = await bought(world)
    adjusted = {"delta": 5, "request_no": world.fresh("r"), "reason": "delivery", "approval_no": "A-7"}
    path = f"/v1/inventory/{quote(key, safe='')}/adjust"
    assert (await world.call("POST", path, adjusted, caller="inventory", headers=traced(SECOND))).status_code == 200
    await world.settled()
    told = await key_explained(world, key)
    assert (told["ok"], told["class"], told["missing"]) == (True, "healthy", [])
    assert told["redis"]["quantities"] == told["mysql"]["quantities"]
    assert told["mysql"]["quantities"] == {
        "available": 13, "reserved": 0, "sold": 2, "consumed": 0, "locked": 0, "total": 15,
    }  # fmt: skip
    names = (
        "move",
        "actor",
        "order_id",
        "request_no",
        "buyer_id",
        "reason",
        "approval_no",
        "trace_id",
        "contradiction",
    )
    assert [tuple(step[name] for name in names) for step in told["timeline"]][:3] == [
        ("ADJUST", "inventory", "", adjusted["request_no"], "", "delivery", "A-7", SECOND, ""),
        ("CONFIRM", "all", order_id, "", "ada", "", "", SECOND, ""),
        ("RESERVE", "orders", order_id, "", "ada", "", "", FIRST, ""),
    ]
    assert told["timeline"][3]["reason"] == "first quantity"
    assert (told["created"]["actor"], told["created"]["init_quantity"]) == ("all", 10)
    page = await key_explained(world, key, "?limit=2")
    assert [step["seq"] for step in page["timeline"]] == [4, 3]
    rest = await key_explained(world, key, f"?limit=2&before={page['next_before']}")
    assert ([step["seq"] for step in rest["timeline"]], rest["next_before"]) == ([2, 1], None)


async def test_an_order_tells_it_across_its_lines(world: HttpWorld) -> None:
    key, other, order_id = await bought(world)
    told = await explained(world, f"/ops/orders/{order_id}")
    assert (told["ok"], told["class"], told["status"], told["buyer_id"]) == (True, "healthy", "CONFIRMED", "ada")
    assert [(line["inventory_key"], line["redis"] == line["mysql"]) for line in told["lines"]] == [
        (key, True),
        (other, True),
    ]
    assert sorted((step["move"], step["inventory_key"]) for step in told["timeline"]) == sorted(
        (move, name) for move in ("RESERVE", "CONFIRM") for name in (key, other)
    )
    assert [step["move"] for step in told["timeline"]] == ["RESERVE", "RESERVE", "CONFIRM", "CONFIRM"]
    assert (told["trace_ids"], told["actors"]) == ([FIRST, SECOND], ["orders", "all"])
    page = await explained(world, f"/ops/orders/{order_id}?limit=3")
    rest = await explained(world, f"/ops/orders/{order_id}?limit=3&after={quote(page['next_after'], safe='')}")
    assert page["timeline"] + rest["timeline"] == told["timeline"]


async def test_what_nobody_knows_is_404(world: HttpWorld) -> None:
    _, _, order_id = await bought(world)
    refused(await world.call("GET", "/ops/inventory/no-such/explain", caller="ops"), 404, "UNKNOWN_INVENTORY_KEY")
    refused(await world.call("GET", "/ops/orders/no-such", caller="ops"), 404, "UNKNOWN_ORDER")
    refused(await world.call("GET", f"/ops/orders/{order_id}", caller="other_tenant"), 404, "UNKNOWN_ORDER")
    told = await explained(world, f"/ops/orders/{order_id}?tenant=acme", caller="other_tenant")
    assert told["class"] == "healthy"


async def test_who_is_confined_to_a_prefix_sees_no_more_than_it(world: HttpWorld) -> None:
    key, _, order_id = await bought(world)
    path = f"/ops/inventory/{quote(key, safe='')}/explain"
    refused(await world.call("GET", path, caller="confined"), 403, "FORBIDDEN")
    refused(await world.call("GET", f"/ops/orders/{order_id}", caller="confined"), 404, "UNKNOWN_ORDER")
    own = await world.stocked(5, world.fresh("shop-a/sku"))
    own_order = await world.reserved(own, 1)
    assert (await explained(world, f"/ops/orders/{own_order}", caller="confined"))["status"] == "RESERVED"


@pytest.mark.parametrize(
    "path",
    [
        "/ops/inventory/k/explain?limit=0",
        "/ops/inventory/k/explain?before=0",
        "/ops/inventory/k/explain?before=x",
        "/ops/inventory/k/explain?after=1",
        "/ops/inventory/%20k/explain",
        "/ops/orders/o?after=7",
        "/ops/orders/o?tenant=a%2Fb",
        "/ops/orders/o%20p",
    ],
)
async def test_a_question_that_is_none_is_422(world: HttpWorld, path: str) -> None:
    refused(await world.call("GET", path, caller="ops"), 422, "INVALID_REQUEST")


async def test_only_operators_ask(world: HttpWorld) -> None:
    for path in ("/ops/inventory/k/explain", "/ops/orders/o"):
        for caller in ("orders", "inventory", "metrics"):
            refused(await world.call("GET", path, caller=caller), 403, "FORBIDDEN")


# --- the command line -------------------------------------------------------------------------------------------------


async def test_the_command_says_the_same_and_its_exit_code_whether_all_is_well(
    world: HttpWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    key, _, order_id = await bought(world)
    assert await command(world.settings, key=key) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == await key_explained(world, key)
    assert await command(world.settings, order=order_id) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == await explained(world, f"/ops/orders/{order_id}")

    redis = RedisDoor.open(world.settings, name="test")
    await redis.command("HSET", EpochKeys(0, 1).balance(key), "available", 1)
    assert await command(world.settings, key=key, as_json=False) == 1
    plain = capsys.readouterr().out
    assert plain.startswith("DRIFTED\n")
    assert "\x1b" not in plain
    assert FIRST in plain
    await redis.command("HSET", EpochKeys(0, 1).balance(key), "available", 8)
    await redis.close()


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"key": "no-such"}, "UNKNOWN_INVENTORY_KEY"),
        ({"order": "no-such"}, "UNKNOWN_ORDER"),
        ({}, "INVALID_REQUEST"),
        ({"key": "k", "order": "o"}, "INVALID_REQUEST"),
        ({"key": "k\u00e9"}, "INVALID_REQUEST"),
        ({"key": "k", "page": "x"}, "INVALID_REQUEST"),
        ({"order": "o", "page": "x"}, "INVALID_REQUEST"),
    ],
)
async def test_the_command_says_what_it_cannot_explain(
    world: HttpWorld, capsys: pytest.CaptureFixture[str], asked: dict[str, Any], code: str
) -> None:
    assert await command(world.settings, **asked) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["code"]) == (False, code)
    assert await command(world.settings, **asked, as_json=False) == 1
    assert code in capsys.readouterr().out


async def test_on_a_terminal_it_is_coloured_and_nothing_from_outside_is(world: HttpWorld) -> None:
    key, _, _ = await bought(world)
    adjusted = {"delta": 1, "request_no": world.fresh("r"), "reason": "[red]bold\u009b31m[/red]"}
    path = f"/v1/inventory/{quote(key, safe='')}/adjust"
    assert (await world.call("POST", path, adjusted)).status_code == 200
    await world.settled()
    database, redis = await Database.open(world.settings, name="test"), RedisDoor.open(world.settings, name="test")
    told = await explain_key(database, redis, 0, key, 50, EXACT_INTEGER_MAX)
    await database.close()
    await redis.close()
    assert told is not None
    out = io.StringIO()
    show(sections(told), Console(file=out, force_terminal=True, width=250))
    assert "HEALTHY" in out.getvalue()
    assert "\x1b[" in out.getvalue()
    assert "[red]bold\\x9b31m[/red]" in out.getvalue()


async def test_as_a_process(world: HttpWorld) -> None:
    key, _, _ = await bought(world)
    environment = {
        **os.environ,
        "STOCKGATE_REDIS_URL": world.settings.redis_url.get_secret_value(),
        "STOCKGATE_MYSQL_URL": world.settings.mysql_url.get_secret_value(),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stockgate", "explain", key, "--json", env=environment, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert json.loads(out.splitlines()[-1])["inventory_key"] == key
