"""The examples of the API's page were executed: each is made again here, in order, and what comes is what stands there.

With RECORD_EXAMPLES set (`make docs`) the replies are written instead.
"""

import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from gateway.contract import contract
from gateway.examples import JSON, Example, read_examples
from gateway.openapi import document
from stockgate.servers import Servers
from tests.integration.http_world import HttpWorld, held_open

FILE = Path(__file__).parents[2] / "gateway" / "examples.json"
HEADERS = ("Durability", "Idempotent-Replay", "Retry-After", "WWW-Authenticate")
SAME = frozenset(
    [
        "order_id",
        "inventory_key",
        "qty",
        "status",
        "code",
        "title",
        "available",
        "reserved",
        "sold",
        "consumed",
        "locked",
        "total",
        "requested",
        "wanted",
        "order_status",
        "inventory_version",
        "class",
        "ok",
        "replay",
        "differs",
    ]
)
"""Fields whose values are part of the example; of the others (times, numbers of a run) only the kind is."""
PLAIN = "text/plain"


@pytest.fixture
async def world(servers: Servers, tmp_path: Path) -> AsyncGenerator[HttpWorld]:
    async with held_open(servers, tmp_path) as world:
        yield world


async def make(world: HttpWorld, example: Example) -> Example:
    """The example with what came this time."""
    path = example.call.partition(" ")[2]
    if path.startswith("/ops/") and not path.startswith("/ops/mode"):
        # What operators see is told of a system at rest; a switch is given up before the leader has got far with it.
        await world.settled()
    method = example.call.partition(" ")[0]
    reply = await world.call(method, example.path, example.body, caller=example.scope or None)
    return msgspec.structs.replace(
        example,
        status=reply.status_code,
        headers={name: reply.headers[name] for name in HEADERS if name in reply.headers},
        media_type=reply.headers["content-type"].partition(";")[0],
        reply=body_of(reply),
    )


def body_of(reply: httpx2.Response) -> Any:
    return reply.text if reply.headers["content-type"].startswith(PLAIN) else reply.json()


def differences(before: Any, now: Any, path: str = "$") -> list[str]:
    """Where a reply has another shape, or another value in a field that is the same in each run."""
    if before is None or now is None:
        return []  # a store may not have been compared yet, or a hold not be due
    if isinstance(before, dict) and isinstance(now, dict):
        if before.keys() != now.keys():
            return [f"{path}: {sorted(before.keys() ^ now.keys())} in one of them only"]
        return [
            found
            for name in before
            for found in (
                [f"{path}.{name}: {before[name]!r}, now {now[name]!r}"]
                if name in SAME and not isinstance(before[name], dict | list) and before[name] != now[name]
                else differences(before[name], now[name], f"{path}.{name}")
            )
        ]
    if isinstance(before, list) and isinstance(now, list):
        if len(before) != len(now):
            return [f"{path}: {len(before)} elements, now {len(now)}"]
        return [
            found
            for at, (one, other) in enumerate(zip(before, now, strict=True))
            for found in differences(one, other, f"{path}[{at}]")
        ]
    number = (int, float)
    alike = type(before) is type(now) or (isinstance(before, number) and isinstance(now, number))
    return [] if alike else [f"{path}: {before!r}, now {now!r}"]


async def test_every_example_comes_out_as_it_stands_in_the_document(world: HttpWorld) -> None:
    examples = read_examples()
    made = [await make(world, example) for example in examples]
    if os.environ.get("RECORD_EXAMPLES"):
        FILE.write_bytes(msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n")
        # What was written must read back as what was answered.
        examples = read_examples()
    wrong: list[str] = []
    for example, again in zip(examples, made, strict=True):
        if (example.status, example.headers) != (again.status, again.headers):
            was, is_ = (example.status, example.headers), (again.status, again.headers)
            wrong.append(f"{example.title}: {was}, now {is_}: {again.reply}")
        wrong += [f"{example.title}: {found}" for found in differences(example.reply, again.reply)]
    assert not wrong, "\n".join([*wrong, "`make docs` records the examples anew"])


def test_every_call_has_an_example_with_each_way_of_success() -> None:
    endpoints = contract("0")
    told = {(example.call, example.status) for example in read_examples()}
    # Being unready is no success, and metrics, the document and its page are not JSON to copy from.
    wanted = {
        (f"{endpoint.method} {endpoint.template}", status)
        for endpoint in endpoints
        for status, given in endpoint.gives.items()
        if given is not None and status < 300
    }
    assert wanted <= told


def test_the_document_carries_every_example() -> None:
    paths = document(contract("0"), "0")["paths"]
    for number, example in enumerate(read_examples(), 1):
        method, template = example.call.split(" ")
        operation = paths[template][method.lower()]
        name = f"example-{number}"
        assert name in {one["name"] for one in operation["x-examples"]}
        content = operation["responses"][str(example.status)]["content"][example.media_type]
        assert content["examples"][name]["value"] == example.reply
        if example.body is not None:
            body = operation["requestBody"]["content"][JSON]["examples"][name]
            assert body == {"summary": example.title, "value": example.body}


def test_a_change_of_shape_or_of_a_value_that_matters_is_a_difference() -> None:
    reply = {"status": "RESERVED", "seq": 4, "lines": [{"qty": 2}], "expires_at": None}
    assert differences(reply, {**reply, "seq": 9, "expires_at": "2030-01-01T00:00:00Z"}) == []
    for changed in (
        {"status": "CONFIRMED"},
        {"seq": "4"},
        {"lines": []},
        {"lines": [{"qty": 3}]},
        {"lines": [{"qty": 2, "new": 1}]},
        {"more": 1},
    ):
        assert differences(reply, {**reply, **changed}), changed
