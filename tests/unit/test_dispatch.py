"""The way of a call through the gateway with a batcher of the test's own: failures, bounds, cancellation."""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.app import create_app
from gateway.call import Lifecycle, State
from inventory.batcher import Answer
from inventory.hot_path import Failure
from inventory.operations import Operation, Result
from inventory.outcomes import Outcome
from kernel.auth import KeyRing
from kernel.errors import ScriptFailed, StoreUnavailable
from kernel.metrics import Metrics
from kernel.problems import CATALOGUE
from kernel.settings import Settings
from tests.declared import watched_answers

ORDER = [1_800_000_000_000, "", [["k", 1, 1, "", 3, 7]]]
RESERVE = b'{"order_id":"o","lines":[{"inventory_key":"k","qty":1}]}'

Submit = Callable[[Sequence[Operation]], Awaitable[Answer]]


class Gateway:
    """The application around one way to decide."""

    def __init__(self, directory: Path, submit: Submit, **changed: Any) -> None:
        keys = directory / "keys.json"
        entry = {
            "name": "all",
            "tenant": "t",
            "scopes": ["orders", "inventory"],
            "sha256": hashlib.sha256(b"key").hexdigest(),
        }
        keys.write_text(json.dumps([entry]))
        self.settings = Settings(api_keys_file=keys, **changed)
        batcher = type("Batcher", (), {"submit": staticmethod(submit)})()
        # The stores behind the other parts of the state are not asked here.
        self.state = cast(
            "State",
            {
                "settings": self.settings,
                "keys": KeyRing.load(self.settings),
                "batcher": batcher,
                "metrics": Metrics(),
                "lifecycle": Lifecycle(),
            },
        )
        self.app = create_app(self.settings, Lifecycle())

    async def call(
        self, method: str = "POST", path: str = "/v1/reservations", body: bytes = RESERVE
    ) -> tuple[int, dict[str, str], Any]:
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "path": path,
            "query_string": b"",
            "headers": [(b"authorization", b"Bearer key")],
            "state": self.state,
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        try:
            await self.app(scope, receive, send)
        except asyncio.CancelledError:
            if not sent:
                raise
        head, content = sent
        headers = {name.decode(): value.decode() for name, value in head["headers"]}
        assert int(headers["content-length"]) == len(content["body"])
        return head["status"], headers, json.loads(content["body"])


def decided(*results: Result | Failure) -> Submit:
    async def submit(_operations: Sequence[Operation]) -> Answer:
        return Answer(list(results), 3, "broker", 1_799_999_000_000)

    return submit


def raising(error: Exception) -> Submit:
    async def submit(_operations: Sequence[Operation]) -> Answer:
        raise error

    return submit


@pytest.mark.parametrize(
    ("result", "status", "code", "outcome"),
    [
        (Failure("UNAVAILABLE", "unknown", "lost"), 503, "UNAVAILABLE", "unknown"),
        (Failure("UNAVAILABLE", "not_executed", "away"), 503, "UNAVAILABLE", "not_executed"),
        (Failure("SHARD_CLOSED", "not_executed", "opening"), 503, "SHARD_CLOSED", "not_executed"),
        (Failure("OVERLOADED", "not_executed", "full"), 503, "UNAVAILABLE", "not_executed"),
        (Result(Outcome.KEY_FROZEN, detail=["k"]), 503, "KEY_FROZEN", "not_executed"),
        (Result(Outcome.OVERLOADED), 503, "UNAVAILABLE", "not_executed"),
        (Result(Outcome.LOST, detail=["k"]), 503, "UNAVAILABLE", "not_executed"),
        (Result(Outcome.NOT_LOADED, detail=["k"]), 503, "UNAVAILABLE", "not_executed"),
        (Result(Outcome.NEED_LOOKUP), 503, "UNAVAILABLE", "not_executed"),
        (Result(Outcome.SKIPPED), 503, "UNAVAILABLE", "not_executed"),
    ],
    ids=str,
)
async def test_every_503_says_whether_it_was_done(
    tmp_path: Path, result: Result | Failure, status: int, code: str, outcome: str
) -> None:
    got, headers, body = await Gateway(tmp_path, decided(result)).call()
    assert (got, body["code"], body["outcome"]) == (status, code, outcome)
    assert headers["retry-after"] == "1"
    assert "durability" not in headers


@pytest.mark.parametrize(
    ("error", "status", "code", "outcome"),
    [
        (ValueError("a bug"), 500, "INTERNAL_ERROR", "unknown"),
        (ScriptFailed("a bug"), 500, "INTERNAL_ERROR", "unknown"),
        (StoreUnavailable("mysql", "not_executed"), 503, "UNAVAILABLE", "not_executed"),
        (StoreUnavailable("redis", "unknown"), 503, "UNAVAILABLE", "unknown"),
    ],
    ids=str,
)
async def test_a_failure_nobody_answered_is_still_an_answer(
    tmp_path: Path, error: Exception, status: int, code: str, outcome: str
) -> None:
    got, _, body = await Gateway(tmp_path, raising(error)).call()
    assert (got, body["code"], body["outcome"]) == (status, code, outcome)
    assert "a bug" not in json.dumps(body), "what went wrong inside stays in the log"


DETAILS: dict[Outcome, Any] = {
    Outcome.INSUFFICIENT_STOCK: [["k", 5, 1]],
    Outcome.ORDER_CONFLICT: ORDER,
    Outcome.ORDER_CLOSED: ORDER,
    Outcome.ILLEGAL_TRANSITION: [["k", 2, ""], ["l", 3, "risk"]],
    Outcome.HOLD_EXPIRED: [0, "", [["k", 1, 3, "expired", 3, 7]]],
    Outcome.UNKNOWN_INVENTORY_KEY: ["k"],
    Outcome.VERSION_CONFLICT: [9],
    Outcome.UNKNOWN_LINE: ["k"],
    Outcome.QUANTITY_LIMIT: ["k"],
    Outcome.KEY_FROZEN: ["k"],
}


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.DONE])
async def test_every_outcome_has_its_problem(
    tmp_path: Path, outcome: Outcome, answers_against_the_contract: list[str]
) -> None:
    result = Result(outcome, detail=DETAILS.get(outcome))
    status, headers, body = await Gateway(tmp_path, decided(result)).call()
    assert body["code"] in CATALOGUE
    assert status == CATALOGUE[body["code"]].status == body["status"]
    assert headers["content-type"] == "application/problem+json"
    assert body["instance"] == headers["x-request-id"]
    # Some of these outcomes belong to other calls than this one.
    answers_against_the_contract.clear()


async def test_a_mixed_order_in_the_way_is_called_mixed(tmp_path: Path) -> None:
    result = Result(Outcome.ILLEGAL_TRANSITION, detail=DETAILS[Outcome.ILLEGAL_TRANSITION])
    gateway = Gateway(tmp_path, decided(result))
    _, _, body = await gateway.call(path="/v1/reservations/o/confirm", body=b"{}")
    assert (body["order_status"], body["wanted"]) == ("MIXED", "CONFIRMED")


async def test_one_failure_among_operations_is_only_its_own(tmp_path: Path) -> None:
    results = (
        Result(Outcome.DONE, detail=ORDER),
        Failure("UNAVAILABLE", "unknown", "x"),
        Result(Outcome.UNKNOWN_ORDER),
    )
    body = json.dumps({"operations": [{"op": "confirm", "order_id": str(n)} for n in range(3)]}).encode()
    status, _, reply = await Gateway(tmp_path, decided(*results)).call(path="/v1/operations", body=body)
    assert status == 200
    assert [result["status"] for result in reply["results"]] == [200, 503, 404]
    assert reply["results"][1]["body"]["outcome"] == "unknown"


async def test_more_requests_at_once_than_allowed_are_not_begun(tmp_path: Path) -> None:
    go = asyncio.Event()
    begun = 0

    async def slow(_operations: Sequence[Operation]) -> Answer:
        nonlocal begun
        begun += 1
        await go.wait()
        return Answer([Result(Outcome.DONE, detail=ORDER)], 3, "broker", 1)

    gateway = Gateway(tmp_path, slow, http_connections_max=2)
    calls = [asyncio.create_task(gateway.call()) for _ in range(3)]
    await asyncio.sleep(0.05)
    go.set()
    statuses = sorted([(await call)[0] for call in calls])
    assert (statuses, begun) == ([201, 201, 503], 2)


async def test_a_call_that_is_cancelled_while_it_is_decided_says_unknown(tmp_path: Path) -> None:
    async def never(_operations: Sequence[Operation]) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    call = asyncio.create_task(Gateway(tmp_path, never).call())
    await asyncio.sleep(0.05)
    call.cancel()
    status, _, body = await call
    assert (status, body["outcome"]) == (503, "unknown")


async def test_a_body_in_pieces_is_one_body_and_a_caller_who_leaves_is_no_call(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path, decided(Result(Outcome.DONE, detail=ORDER)))
    pieces: list[Any] = [
        {"type": "http.request", "body": RESERVE[:10], "more_body": True},
        {"type": "http.request", "body": b"", "more_body": True},
        {"type": "http.request", "body": RESERVE[10:], "more_body": False},
    ]
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "raw_path": b"/v1/reservations",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer key")],
        "state": gateway.state,
    }
    sent: list[Any] = []

    async def receive() -> Any:
        return pieces.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await gateway.app(scope, receive, send)
    assert sent[0]["status"] == 201
    sent.clear()
    pieces += [{"type": "http.request", "body": RESERVE[:10], "more_body": True}, {"type": "http.disconnect"}]
    await gateway.app(scope, receive, send)
    assert sent == []


async def test_an_answer_that_its_call_does_not_declare_is_noticed(
    tmp_path: Path, answers_against_the_contract: list[str]
) -> None:
    with watched_answers() as found:
        await Gateway(tmp_path, decided(Result(Outcome.VERSION_CONFLICT, detail=[9]))).call()
    assert found == ["POST /v1/reservations answered 409 VERSION_CONFLICT, which it does not declare"]
    answers_against_the_contract.clear()
