"""The client against an ASGI app and a transport with faults: what is repeated, and what a caller is told."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest

import client as package
from client import (
    BadReply,
    BadRequest,
    Confirm,
    Done,
    Forbidden,
    Line,
    NotExecuted,
    OutcomeUnknown,
    Refused,
    Reserve,
    Retries,
    StockgateClient,
    Unanswered,
    Unauthorized,
)

ORDER: dict[str, Any] = {
    "order_id": "o-1",
    "status": "RESERVED",
    "lines": [{"inventory_key": "k", "qty": 2, "status": "RESERVED", "epoch": 3, "seq": 7}],
    "expires_at": "2026-11-30T12:00:00Z",
    "server_time": "2026-11-30T11:45:00Z",
}
INVENTORY: dict[str, Any] = {
    "inventory_key": "k",
    "inventory_mode": "QTY",
    "init_status": "READY",
    "available": 5,
    "reserved": 0,
    "sold": 0,
    "consumed": 0,
    "locked": 0,
    "total": 5,
    "epoch": 1,
    "seq": 1,
    "inventory_version": 1,
    "source": "redis",
}
QUICK = Retries(deadline_s=1.0, attempt_s=0.5, pause_first_s=0.01, pause_max_s=0.02, random=Random(1))


class Service:
    """An ASGI app that answers from a script: one (status, headers, body) for each request, the last one for ever."""

    def __init__(self, *answers: tuple[int, dict[str, str], Any]) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[str, str, dict[str, str], Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        path = scope["raw_path"].decode()
        self.heard.append((scope["method"], path, headers, json.loads(body) if body else None))
        status, extra, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        raw = [(name.encode(), value.encode()) for name, value in extra.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": content})


class Faulty(httpx2.AsyncBaseTransport):
    """Lets the service do its work, then does what the next fault says with the reply."""

    def __init__(self, service: Service, *faults: Callable[[httpx2.Request], Exception] | None) -> None:
        self.inner = httpx2.ASGITransport(app=service)
        self.faults = list(faults)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        fault = self.faults.pop(0) if self.faults else None
        error = fault(request) if fault else None
        if isinstance(error, httpx2.ConnectError):
            raise error
        response = await self.inner.handle_async_request(request)
        if error is not None:
            raise error
        return response


def lost(request: httpx2.Request) -> Exception:
    return httpx2.ReadError("the connection broke", request=request)


def refused_connection(request: httpx2.Request) -> Exception:
    return httpx2.ConnectError("refused", request=request)


def client_of(service: Service, *faults: Any, retries: Retries = QUICK) -> StockgateClient:
    return StockgateClient("http://stockgate", "secret", retries=retries, transport=Faulty(service, *faults))


def problem(status: int, code: str, **fields: Any) -> tuple[int, dict[str, str], Any]:
    return status, {"content-type": "application/problem+json"}, {"code": code, "status": status, **fields}


CREATED = (201, {"durability": "broker"}, ORDER)
REPLAYED = (200, {"durability": "broker", "idempotent-replay": "true"}, ORDER)


async def test_reserve_sends_the_contract_and_reads_the_order() -> None:
    service = Service(CREATED)
    async with client_of(service) as client:
        answer = await client.reserve("o-1", {"k": 2}, ttl_seconds=60, buyer_id="b", traceparent="00-aa-bb-01")
    assert isinstance(answer, Done)
    assert (answer.value.order_id, answer.replay, answer.durability, answer.status) == ("o-1", False, "broker", 201)
    assert answer.value.lines[0].seq == 7
    method, path, headers, body = service.heard[0]
    assert (method, path) == ("POST", "/v1/reservations")
    assert headers["authorization"] == "Bearer secret"
    assert headers["traceparent"] == "00-aa-bb-01"
    assert body == {
        "order_id": "o-1",
        "lines": [{"inventory_key": "k", "qty": 2}],
        "ttl_seconds": 60,
        "buyer_id": "b",
    }


async def test_every_call_goes_where_the_contract_says() -> None:
    service = Service((200, {}, ORDER))
    async with client_of(service) as client:
        await client.confirm("o 1/{x}")
        await client.release("o-1", "risk", lines=["k"])
        await client.consume("o-1")
        await client.return_("o-1", "changed his mind")
        await client.extend("o-1", 60)
        await client.order("..")
    assert [(method, path, body) for method, path, _, body in service.heard] == [
        ("POST", "/v1/reservations/o%201%2F%7Bx%7D/confirm", {}),
        ("POST", "/v1/reservations/o-1/release", {"reason": "risk", "lines": ["k"]}),
        ("POST", "/v1/reservations/o-1/consume", {}),
        ("POST", "/v1/reservations/o-1/return", {"reason": "changed his mind"}),
        ("POST", "/v1/reservations/o-1/extend", {"ttl_seconds": 60}),
        ("GET", "/v1/reservations/%2E%2E", None),
    ]


async def test_inventory_calls() -> None:
    service = Service(
        (201, {}, INVENTORY),
        (200, {}, INVENTORY),
        (
            200,
            {},
            {
                "results": [
                    {"status": 200, "body": INVENTORY},
                    {"status": 404, "body": {"code": "UNKNOWN_INVENTORY_KEY"}},
                ]
            },
        ),
        (200, {}, INVENTORY),
    )
    async with client_of(service) as client:
        created = await client.create_inventory("k", item_id="i", init_quantity=5, request_no="r-1")
        read = await client.inventory("a b/c")
        first, second = await client.query_inventory(["k", "no"])
        await client.adjust("k", -3, request_no="r-2", reason="count", base_inventory_version=4)
        await client.lock("k", 1, request_no="r-3", reason="damage")
        await client.unlock("k", 1, request_no="r-4", reason="found")
    assert isinstance(created, Done)
    assert isinstance(read, Done)
    assert isinstance(first, Done)
    assert isinstance(second, Refused)
    assert second.code == "UNKNOWN_INVENTORY_KEY"
    assert [(path, body) for _, path, _, body in service.heard] == [
        (
            "/v1/inventory",
            {
                "inventory_key": "k",
                "item_id": "i",
                "inventory_mode": "QTY",
                "init_quantity": 5,
                "request_no": "r-1",
            },
        ),
        ("/v1/inventory/a%20b%2Fc", None),
        ("/v1/inventory/query", {"inventory_keys": ["k", "no"]}),
        (
            "/v1/inventory/k/adjust",
            {"delta": -3, "request_no": "r-2", "reason": "count", "base_inventory_version": 4},
        ),
        ("/v1/inventory/k/lock", {"qty": 1, "request_no": "r-3", "reason": "damage"}),
        ("/v1/inventory/k/unlock", {"qty": 1, "request_no": "r-4", "reason": "found"}),
    ]


async def test_a_refusal_is_a_value_with_its_fields() -> None:
    lines = [{"inventory_key": "k", "requested": 5, "available": 1}]
    service = Service(problem(409, "INSUFFICIENT_STOCK", lines=lines, hint="later"))
    async with client_of(service) as client:
        answer = await client.reserve("o-1", [Line("k", 5)])
    assert isinstance(answer, Refused)
    assert (answer.code, answer.status, answer.after_unknown) == ("INSUFFICIENT_STOCK", 409, False)
    assert (answer.problem.lines[0].requested, answer.problem.lines[0].available) == (5, 1)
    assert answer.problem.field("hint") == "later"
    assert len(service.heard) == 1


async def test_a_lost_reply_is_asked_for_again_with_the_same_id() -> None:
    service = Service(CREATED, REPLAYED)
    async with client_of(service, lost) as client:
        answer = await client.reserve("o-1", {"k": 2})
    assert isinstance(answer, Done)
    assert answer.replay
    assert answer.after_unknown
    assert [body["order_id"] for *_, body in service.heard] == ["o-1", "o-1"]


async def test_unknown_and_not_executed_503_are_repeated() -> None:
    service = Service(
        problem(503, "UNAVAILABLE", outcome="unknown"), problem(503, "SHARD_CLOSED", outcome="not_executed"), CREATED
    )
    async with client_of(service) as client:
        answer = await client.reserve("o-1", {"k": 2})
    assert isinstance(answer, Done)
    assert len(service.heard) == 3


async def test_retry_after_is_a_lower_bound() -> None:
    service = Service((503, {"retry-after": "1"}, {"code": "UNAVAILABLE", "outcome": "not_executed"}), CREATED)
    retries = Retries(deadline_s=0.9, attempt_s=0.5, pause_first_s=0.01)
    async with client_of(service, retries=retries) as client:
        with pytest.raises(NotExecuted):
            await client.reserve("o-1", {"k": 2})
    assert len(service.heard) == 1, "the second attempt would have come before the second was over"


async def test_pauses_grow_are_bounded_and_jittered() -> None:
    retries = Retries(pause_first_s=0.1, pause_max_s=1.0, random=Random(5))
    pauses = [retries.pause_s(attempt, None) for attempt in range(1, 40)]
    assert 0.05 <= pauses[0] <= 0.1
    assert all(pause <= 1.0 for pause in pauses)
    assert len(set(pauses)) > 30
    assert 3.0 < retries.pause_s(1, 3.0) <= 3.1


async def test_after_the_deadline_an_unknown_stays_unknown_even_if_the_last_attempt_was_not_executed() -> None:
    service = Service(
        problem(503, "UNAVAILABLE", outcome="unknown"), problem(503, "UNAVAILABLE", outcome="not_executed")
    )
    retries = Retries(deadline_s=0.1, attempt_s=0.05, pause_first_s=0.01, pause_max_s=0.02)
    async with client_of(service, retries=retries) as client:
        with pytest.raises(OutcomeUnknown):
            await client.confirm("o-1")
    assert len(service.heard) > 2


async def test_no_connection_is_not_executed() -> None:
    service = Service(CREATED)
    retries = Retries(deadline_s=0.1, attempt_s=0.05, pause_first_s=0.01, pause_max_s=0.02)
    async with client_of(service, *[refused_connection] * 100, retries=retries) as client:
        with pytest.raises(NotExecuted):
            await client.reserve("o-1", {"k": 2})
    assert service.heard == []


async def test_429_is_repeated_and_ends_as_not_executed() -> None:
    service = Service(problem(429, "TOO_MANY_REQUESTS"))
    retries = Retries(deadline_s=0.1, attempt_s=0.05, pause_first_s=0.01, pause_max_s=0.02)
    async with client_of(service, retries=retries) as client:
        with pytest.raises(NotExecuted) as caught:
            await client.reserve("o-1", {"k": 2})
    assert caught.value.problem is not None
    assert caught.value.problem.code == "TOO_MANY_REQUESTS"


@pytest.mark.parametrize(
    ("status", "code", "failure"),
    [
        (401, "UNAUTHORIZED", Unauthorized),
        (403, "FORBIDDEN", Forbidden),
        (400, "MALFORMED_JSON", BadRequest),
        (413, "BODY_TOO_LARGE", BadRequest),
        (422, "INVALID_REQUEST", BadRequest),
    ],
)
async def test_what_no_repeat_mends_is_an_exception(status: int, code: str, failure: type[Exception]) -> None:
    service = Service(problem(status, code, detail="because"))
    async with client_of(service) as client:
        with pytest.raises(failure, match="because"):
            await client.reserve("o-1", {"k": 2})
    assert len(service.heard) == 1


@pytest.mark.parametrize("body", [b"<html>", b'{"order_id": 7}', b"[]", b"\xff"])
async def test_a_reply_that_is_not_the_contract_is_no_answer(body: bytes) -> None:
    async with client_of(Service((200, {}, body))) as client:
        with pytest.raises(BadReply):
            await client.order("o-1")


async def test_a_proxys_page_is_no_refusal() -> None:
    async with client_of(Service((404, {}, b"<html>"))) as client:
        with pytest.raises(BadReply):
            await client.order("o-1")


async def test_a_5xx_without_an_outcome_is_unknown() -> None:
    retries = Retries(deadline_s=0.05, attempt_s=0.05, pause_first_s=0.02)
    async with client_of(Service((502, {}, b"Bad Gateway")), retries=retries) as client:
        with pytest.raises(OutcomeUnknown):
            await client.reserve("o-1", {"k": 2})


async def test_operations_repeat_only_what_has_no_answer() -> None:
    closed = {"code": "SHARD_CLOSED", "outcome": "not_executed"}
    service = Service(
        (
            200,
            {"durability": "broker"},
            {
                "results": [
                    {"status": 201, "body": ORDER},
                    {"status": 503, "body": closed},
                    {"status": 404, "body": {"code": "UNKNOWN_ORDER"}},
                ]
            },
        ),
        (200, {"durability": "broker"}, {"results": [{"status": 200, "body": ORDER, "replay": True}]}),
    )
    async with client_of(service) as client:
        results = await client.operations(
            [
                Reserve(order_id="o-1", lines=[Line("k", 2)]),
                Confirm(order_id="o-2"),
                Confirm(order_id="o-3"),
            ]
        )
    assert isinstance(results[0], Done)
    assert isinstance(results[1], Done)
    assert results[1].replay
    assert isinstance(results[2], Refused)
    assert service.heard[0][3]["operations"][0] == {
        "op": "reserve",
        "order_id": "o-1",
        "lines": [{"inventory_key": "k", "qty": 2}],
    }
    assert service.heard[1][3]["operations"] == [{"op": "confirm", "order_id": "o-2"}]


async def test_operations_say_what_is_still_unanswered_at_the_deadline() -> None:
    results = [
        {"status": 200, "body": ORDER},
        {"status": 503, "body": {"code": "UNAVAILABLE", "outcome": "unknown"}},
    ]
    later = [{"status": 503, "body": {"code": "UNAVAILABLE", "outcome": "not_executed"}}]
    service = Service((200, {}, {"results": results}), (200, {}, {"results": later}))
    retries = Retries(deadline_s=0.1, attempt_s=0.05, pause_first_s=0.01, pause_max_s=0.02)
    async with client_of(service, retries=retries) as client:
        done, open_ = await client.operations([Confirm(order_id="o-1"), Confirm(order_id="o-2")])
    assert isinstance(done, Done)
    assert isinstance(open_, Unanswered)
    assert open_.outcome == "unknown"


async def test_operations_keep_what_is_known_when_the_service_goes_away() -> None:
    results = [{"status": 200, "body": ORDER}, {"status": 503, "body": {"code": "X", "outcome": "not_executed"}}]
    service = Service((200, {}, {"results": results}))
    retries = Retries(deadline_s=0.1, attempt_s=0.05, pause_first_s=0.01, pause_max_s=0.02)
    async with client_of(service, None, *[lost] * 100, retries=retries) as client:
        done, open_ = await client.operations([Confirm(order_id="o-1"), Confirm(order_id="o-2")])
    assert isinstance(done, Done)
    assert isinstance(open_, Unanswered)
    assert open_.outcome == "unknown", "the repeat may have been carried out"


def test_it_stands_alone_under_its_other_name(tmp_path: Path) -> None:
    folder = Path(package.__file__).parent
    shutil.copytree(folder, tmp_path / "stockgate_client", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import stockgate_client, sys; assert 'client' not in sys.modules; print(stockgate_client.StockgateClient)"
    # -S -I would hide the installed packages too: the test runs elsewhere, with only the copy on its path.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert "stockgate_client.stockgate.StockgateClient" in done.stdout
