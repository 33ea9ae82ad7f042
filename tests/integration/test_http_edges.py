"""What every call has in common: keys, scopes, limits, ids, headers, the document; and callers who hang up."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import pytest_asyncio

from client import Done
from gateway.call import Endpoint
from gateway.contract import contract
from kernel import limits
from kernel.problems import CATALOGUE
from stockgate.servers import Servers
from tests.integration.http_world import CALLERS, HttpWorld, held_open
from tests.integration.test_http_reservations import refused

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENDPOINTS = contract("0")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[HttpWorld]:
    async with held_open(servers, tmp_path_factory.mktemp("http")) as opened:
        yield opened


def path_of(endpoint: Endpoint) -> str:
    return re.sub(r"{\w+}", "1", endpoint.template)


# --- who may ask ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("endpoint", [e for e in ENDPOINTS if e.scopes], ids=lambda e: f"{e.method} {e.template}")
async def test_every_call_asks_for_its_scope(world: HttpWorld, endpoint: Endpoint) -> None:
    for caller in ("orders", "inventory", "ops", "metrics", "supply"):
        reply = await world.call(endpoint.method, path_of(endpoint), {}, caller=caller)
        if endpoint.scopes.isdisjoint(CALLERS[caller].scopes):
            refused(reply, 403, "FORBIDDEN")
        else:
            assert reply.status_code not in {401, 403}, reply.text
    reply = await world.call(endpoint.method, path_of(endpoint), {}, caller=None)
    refused(reply, 401, "UNAUTHORIZED")
    assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("endpoint", [e for e in ENDPOINTS if not e.scopes], ids=lambda e: e.template)
async def test_what_is_open_needs_no_key(world: HttpWorld, endpoint: Endpoint) -> None:
    assert (await world.call(endpoint.method, path_of(endpoint), caller=None)).status_code == 200


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer wrong", "bearer wrong", "Basic YTpi", "Bearer two words", "Bearer " + "x" * 10_000]
)
async def test_a_wrong_key_is_one_kind_of_wrong(world: HttpWorld, header: str) -> None:
    reply = await world.call("GET", "/v1/reservations/o", caller=None, headers={"authorization": header})
    body = refused(reply, 401, "UNAUTHORIZED")
    without = (await world.call("GET", "/v1/reservations/o", caller=None)).json()
    assert body | {"instance": ""} == without | {"instance": ""}


async def test_an_expired_key_is_a_wrong_one(world: HttpWorld) -> None:
    refused(await world.call("GET", "/v1/reservations/o", caller="expired"), 401, "UNAUTHORIZED")


async def test_a_key_has_its_request_limit(world: HttpWorld) -> None:
    for _ in range(2):
        refused(await world.call("GET", "/v1/reservations/o", caller="slow"), 404, "UNKNOWN_ORDER")
    reply = await world.call("GET", "/v1/reservations/o", caller="slow")
    refused(reply, 429, "TOO_MANY_REQUESTS")
    assert reply.headers["retry-after"] == "1"


async def test_a_key_that_was_added_or_taken_out_counts_without_a_restart(world: HttpWorld) -> None:
    path = world.settings.api_keys_file
    assert path is not None
    before = path.read_text()
    try:
        path.write_text(json.dumps([entry for entry in json.loads(before) if entry["name"] != "supply"]))
        async with asyncio.timeout(5):
            while (await world.call("GET", "/ops/status", caller="supply")).status_code != 401:
                await asyncio.sleep(0.1)
        path.write_text("half a fi")
        await asyncio.sleep(1.2)
        assert (await world.call("GET", "/v1/reservations/o")).status_code == 404, "a broken file locks nobody out"
        ready = await world.call("GET", "/health/ready", caller=None)
        assert (ready.status_code, list(ready.json()["missing"])) == (503, ["api_keys"])
    finally:
        path.write_text(before)
    await asyncio.sleep(1.2)
    assert (await world.call("GET", "/ops/status", caller="supply")).status_code == 403
    assert (await world.call("GET", "/health/ready", caller=None)).status_code == 200


# --- paths and methods --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/reservations/", "/v1/reservations/a/b/c", "/v1/inventory/a/b", "//"])
async def test_nothing_is_there(world: HttpWorld, path: str) -> None:
    reply = await world.call("GET", path)
    assert reply.status_code in {404, 422}
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.json()["code"] in {"NOT_FOUND", "INVALID_REQUEST"}
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/operations", ["POST"]),
        ("DELETE", "/v1/reservations/o", ["GET"]),
        ("PUT", "/v1/inventory/query", ["GET", "POST"]),
        ("POST", "/health/live", ["GET"]),
    ],
)
async def test_another_method_is_needed(world: HttpWorld, method: str, path: str, allowed: list[str]) -> None:
    reply = await world.call(method, path)
    assert refused(reply, 405, "METHOD_NOT_ALLOWED")["allowed"] == allowed
    assert reply.headers["allow"] == ", ".join(allowed)


@pytest.mark.parametrize("order_id", ["!\"#$&'()*+,-.:;<=>@[]^_`{|}~", "a/b", "..", "%25", "confirm", "x" * 64])
async def test_order_ids_of_every_kind(world: HttpWorld, order_id: str) -> None:
    key = await world.stocked(1)
    async with world.client() as client:
        await client.reserve(order_id, {key: 1})
        await client.confirm(order_id)
        read = await client.order(order_id)
    assert isinstance(read, Done)
    assert read.value.status == "CONFIRMED"


@pytest.mark.parametrize("order_id", ["a%20b", "%00", "a" * 65, "%C3%A4"])
async def test_a_path_with_no_possible_order_id(world: HttpWorld, order_id: str) -> None:
    refused(await world.call("GET", f"/v1/reservations/{order_id}"), 422, "INVALID_REQUEST")


# --- headers ------------------------------------------------------------------------------------------------------------------


async def test_a_sane_request_id_is_taken_over(world: HttpWorld) -> None:
    reply = await world.call("GET", "/v1/reservations/o", headers={"x-request-id": "my-id-7"})
    assert reply.headers["x-request-id"] == "my-id-7"
    assert reply.json()["instance"] == "my-id-7"


@pytest.mark.parametrize("request_id", ["", "a b", "x" * 65, "a\tb"])
async def test_any_other_request_id_is_replaced(world: HttpWorld, request_id: str) -> None:
    replies = [
        await world.call("GET", "/health/live", headers={"x-request-id": request_id}, caller=None) for _ in range(2)
    ]
    first, second = (reply.headers["x-request-id"] for reply in replies)
    assert request_id not in {first, second}
    assert first != second


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 31 + "-b7ad6b7169203331-01", "x" * 5000])
async def test_a_strange_traceparent_harms_nothing(world: HttpWorld, traceparent: str) -> None:
    key = await world.stocked(1)
    body = {"order_id": world.fresh("o"), "lines": [{"inventory_key": key, "qty": 1}]}
    reply = await world.call("POST", "/v1/reservations", body, headers={"traceparent": traceparent})
    assert reply.status_code == 201


# --- bodies -------------------------------------------------------------------------------------------------------------------


async def test_a_body_too_large_is_refused_before_it_is_read(world: HttpWorld) -> None:
    for path, bytes_max in (
        ("/v1/reservations", limits.BODY_BYTES_MAX),
        ("/v1/operations", limits.OPERATIONS_BODY_BYTES_MAX),
    ):
        refused(await world.call("POST", path, raw=b"x" * (bytes_max + 1)), 413, "BODY_TOO_LARGE")
        refused(await world.call("POST", path, raw=b"x" * bytes_max), 400, "MALFORMED_JSON")


async def test_a_body_without_a_length_is_counted_while_it_comes(world: HttpWorld) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100 * limits.BODY_BYTES_MAX:
            sent += 16_384
            yield b" " * 16_384

    headers = {"authorization": f"Bearer {world.keys['all']}"}
    # The service may close while the caller still writes.
    with suppress(httpx2.TransportError):
        reply = await world.http.post("/v1/reservations", content=endless(), headers=headers)
        refused(reply, 413, "BODY_TOO_LARGE")
        assert reply.headers["connection"] == "close"
    assert sent < 100 * limits.BODY_BYTES_MAX, "the service stopped reading"


async def test_a_largest_order_fits(world: HttpWorld) -> None:
    keys = [f"{'k' * 110}-{number:04d}" for number in range(limits.LINES_PER_ORDER_MAX)]
    body = {"order_id": world.fresh("o"), "lines": [{"inventory_key": key, "qty": 1} for key in keys]}
    reply = await world.call("POST", "/v1/reservations", body)
    assert len(refused(reply, 404, "UNKNOWN_INVENTORY_KEY")["inventory_keys"]) == limits.LINES_PER_ORDER_MAX


async def raw_exchange(world: HttpWorld, sent: bytes, limit_s: float = 20.0) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(sent)
    try:
        async with asyncio.timeout(limit_s):
            return await reader.read()
    finally:
        writer.close()


def head(world: HttpWorld, length: int, path: str = "/v1/reservations") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.keys['all']}\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("cuts", [(0,), (0, 10), (10, 30, 31), (1, 2, 3, 4)])
async def test_a_body_that_comes_late_and_in_pieces_is_one_body(world: HttpWorld, cuts: tuple[int, ...]) -> None:
    key = await world.stocked(1)
    body = json.dumps({"order_id": world.fresh("o"), "lines": [{"inventory_key": key, "qty": 1}]}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(head(world, len(body)))
    for start, end in zip((*cuts,), (*cuts[1:], len(body)), strict=True):
        await asyncio.sleep(0.05)
        writer.write(body[start:end] if start != cuts[0] else body[:end])
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 201"), answer
    writer.close()


async def test_a_caller_who_waits_for_leave_to_send_gets_it(world: HttpWorld) -> None:
    key = await world.stocked(1)
    body = json.dumps({"order_id": world.fresh("o"), "lines": [{"inventory_key": key, "qty": 1}]}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(head(world, len(body)).replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201")
    writer.close()


async def test_a_body_that_never_comes_has_a_time_limit(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BODY_READ_MS_MAX", 300)
    answer = await raw_exchange(world, head(world, 100) + b'{"order_id"')
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"REQUEST_TIMEOUT"' in answer
    assert b"connection: close" in answer.lower()


async def test_a_caller_who_hangs_up_in_the_middle_of_a_body_has_done_nothing(world: HttpWorld) -> None:
    key = await world.stocked(5)
    body = json.dumps({"order_id": world.fresh("o"), "lines": [{"inventory_key": key, "qty": 1}]}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(head(world, len(body)) + body[:-5])
    await writer.drain()
    writer.close()
    await asyncio.sleep(0.3)
    assert await world.quantities(key) == (5, 0, 0, 0, 0)


async def test_a_caller_who_hangs_up_before_the_answer_learns_it_by_asking_again(world: HttpWorld) -> None:
    key = await world.stocked(50)
    bodies = [{"order_id": world.fresh("o"), "lines": [{"inventory_key": key, "qty": 1}]} for _ in range(40)]
    for number, body in enumerate(bodies):
        content = json.dumps(body).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(head(world, len(content)) + content)
        await writer.drain()
        await asyncio.sleep(0.0005 * (number % 8))
        writer.transport.abort()
    await asyncio.sleep(0.5)
    replies = [await world.call("POST", "/v1/reservations", body) for body in bodies]
    assert {reply.status_code for reply in replies} <= {200, 201}
    assert await world.quantities(key) == (10, 40, 0, 0, 0)


async def test_requests_in_one_packet_are_answered_in_order(world: HttpWorld) -> None:
    one = "GET /health/live HTTP/1.1\r\nHost: x\r\nX-Request-Id: %s\r\n%s\r\n"
    sent = "".join(one % (name, "Connection: close\r\n" * (name == "c")) for name in "abc").encode()
    answer = await raw_exchange(world, sent)
    assert re.findall(rb"x-request-id: (.)", answer) == [b"a", b"b", b"c"]


# --- what runs beside ------------------------------------------------------------------------------------------------------------


async def test_metrics_count_requests_operations_and_the_log(world: HttpWorld) -> None:
    key = await world.stocked(1)
    order_id = await world.reserved(key, 1)
    await world.call("POST", f"/v1/reservations/{order_id}/confirm")
    await world.call("POST", f"/v1/reservations/{order_id}/confirm")
    await asyncio.sleep(0.7)
    text = (await world.call("GET", "/metrics", caller="metrics")).text

    def value(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"{name} is not in:\n{text}"
        return float(found[1])

    assert value('stockgate_http_requests_total{route="/v1/reservations",status="201"}') >= 1
    route = "/v1/reservations/{order_id}/confirm"
    assert value(f'stockgate_http_requests_total{{route="{route}",status="200"}}') >= 2
    assert value('stockgate_operations_total{kind="CONFIRM",outcome="DONE"}') >= 2
    assert value('stockgate_replays_total{kind="CONFIRM"}') >= 1
    assert value('stockgate_operation_seconds_count{kind="RESERVE"}') >= 1
    assert value("stockgate_batch_operations_count") >= 2
    assert value('stockgate_log_head_m{shard="0"}') >= 3
    assert value('stockgate_confirmed_m{shard="0"}') >= 3
    assert value('stockgate_epoch{shard="0"}') == 1
    assert value('stockgate_leader{shard="0"}') == 1
    assert order_id not in text
    assert key not in text


async def test_no_line_is_logged_for_a_request_that_was_served(
    world: HttpWorld, capfd: pytest.CaptureFixture[str]
) -> None:
    key = await world.stocked(1)
    capfd.readouterr()
    await world.reserved(key, 1)
    await world.call("POST", "/v1/reservations", {"order_id": "x"})
    out, err = capfd.readouterr()
    assert out + err == ""


# --- the document ----------------------------------------------------------------------------------------------------------------


async def test_the_document_is_valid_and_names_every_call(world: HttpWorld) -> None:
    document = (await world.call("GET", "/openapi.json", caller=None)).json()
    assert document["openapi"] == "3.1.0"
    named = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert named == {(e.method, e.template) for e in ENDPOINTS if e.template not in {"/openapi.json", "/docs"}}
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.validator_for({**schema, "components": document["components"]})
    operation_ids = [call["operationId"] for methods in document["paths"].values() for call in methods.values()]
    assert len(operation_ids) == len(set(operation_ids))
    text = json.dumps(document)
    for code in ("INSUFFICIENT_STOCK", "HOLD_EXPIRED", "REQUEST_CONFLICT", "SHARD_CLOSED"):
        assert code in text
    assert all(ref.split("/")[-1] in document["components"]["schemas"] for ref in re.findall(r'"#/[^"]*/(\w+)"', text))


async def test_replies_and_requests_agree_with_the_document(world: HttpWorld) -> None:
    document = (await world.call("GET", "/openapi.json", caller=None)).json()
    components = document["components"]

    def agree(method: str, template: str, reply: Any) -> None:
        call = document["paths"][template][method.lower()]
        answer = call["responses"][str(reply.status_code)]
        content_type = reply.headers["content-type"]
        schema = answer["content"][content_type]["schema"]
        jsonschema_rs.validator_for({**schema, "components": components}).validate(reply.json())
        if reply.status_code >= 400:
            assert f"`{reply.json()['code']}`" in answer["description"]
        for name, header in answer.get("headers", {}).items():
            if name in reply.headers:
                jsonschema_rs.validator_for(header["schema"]).validate(reply.headers[name])
            else:
                assert not header.get("required"), name

    key = world.fresh("key")
    order_id = world.fresh("o")
    line = {"inventory_key": key, "qty": 1}
    create = {"inventory_key": key, "item_id": "i", "inventory_mode": "QTY", "init_quantity": 9, "request_no": key}
    order = f"/v1/reservations/{order_id}"
    change = {"request_no": world.fresh("r"), "reason": "x"}
    reserve = {"order_id": order_id, "lines": [line], "ttl_seconds": 5, "buyer_id": "b"}
    calls: list[tuple[str, str, str, Any]] = [
        ("POST", "/v1/inventory", "/v1/inventory", create),
        ("POST", "/v1/inventory", "/v1/inventory", create),
        ("POST", "/v1/inventory", "/v1/inventory", create | {"item_id": "j"}),
        ("GET", "/v1/inventory/{key}", f"/v1/inventory/{key}", None),
        ("GET", "/v1/inventory/{key}", "/v1/inventory/no-such", None),
        ("POST", "/v1/inventory/query", "/v1/inventory/query", {"inventory_keys": [key, "no-such"]}),
        ("POST", "/v1/inventory/{key}/adjust", f"/v1/inventory/{key}/adjust", {"delta": 1, **change}),
        ("POST", "/v1/inventory/{key}/adjust", f"/v1/inventory/{key}/adjust", {"delta": 2, **change}),
        ("POST", "/v1/inventory/{key}/lock", f"/v1/inventory/{key}/lock", {"qty": 99, **change}),
        ("POST", "/v1/reservations", "/v1/reservations", reserve),
        ("POST", "/v1/reservations", "/v1/reservations", reserve),
        ("POST", "/v1/reservations", "/v1/reservations", reserve | {"lines": [line, line]}),
        ("POST", "/v1/reservations", "/v1/reservations", reserve | {"order_id": "p", "lines": [{**line, "qty": 99}]}),
        ("POST", "/v1/reservations", "/v1/reservations", {"order_id": "p"}),
        ("POST", "/v1/operations", "/v1/operations", {"operations": [{"op": "confirm", "order_id": "p"}, 7]}),
        ("GET", "/v1/reservations/{order_id}", order, None),
        ("GET", "/v1/reservations/{order_id}", "/v1/reservations/no-such", None),
        ("POST", "/v1/reservations/{order_id}/extend", order + "/extend", {"ttl_seconds": 50}),
        ("POST", "/v1/reservations/{order_id}/confirm", order + "/confirm", {}),
        ("POST", "/v1/reservations/{order_id}/release", order + "/release", {"reason": "risk"}),
        ("POST", "/v1/reservations/{order_id}/consume", order + "/consume", {}),
        ("POST", "/v1/reservations/{order_id}/return", order + "/return", {"reason": "x"}),
        ("GET", "/ops/status", "/ops/status", None),
        ("GET", "/ops/audit", "/ops/audit", None),
        ("POST", "/ops/reconcile", "/ops/reconcile", {"dry_run": True}),
        ("GET", "/ops/reconcile/{id}", "/ops/reconcile/1", None),
        ("GET", "/ops/actions", "/ops/actions?limit=2", None),
        ("GET", "/ops/inventory/{key}/explain", f"/ops/inventory/{key}/explain?limit=2", None),
        ("GET", "/ops/inventory/{key}/explain", "/ops/inventory/no-such/explain", None),
        ("GET", "/ops/orders/{order_id}", order.replace("/v1/reservations", "/ops/orders"), None),
        ("GET", "/ops/orders/{order_id}", "/ops/orders/no-such", None),
        ("GET", "/health/live", "/health/live", None),
        ("GET", "/health/ready", "/health/ready", None),
    ]
    seen: set[int] = set()
    for method, template, path, body in calls:
        reply = await world.call(method, path, body)
        seen.add(reply.status_code)
        agree(method, template, reply)
        if body is not None and reply.status_code < 300:
            wanted = document["paths"][template][method.lower()]["requestBody"]["content"]["application/json"]["schema"]
            valid = jsonschema_rs.validator_for({**wanted, "components": components}).is_valid(body)
            assert valid or template == "/v1/operations"
    assert {200, 201, 202, 404, 409, 422} <= seen


async def test_the_page_that_shows_it_needs_nothing_from_elsewhere(world: HttpWorld) -> None:
    page = await world.call("GET", "/docs", caller=None)
    assert page.headers["content-type"].startswith("text/html")
    assert "http://" not in page.text
    assert "https://" not in page.text


async def test_every_code_of_every_call_is_in_the_catalogue() -> None:
    assert {code for endpoint in ENDPOINTS for code in endpoint.problems} <= CATALOGUE.keys()
