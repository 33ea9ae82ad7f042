"""Creating a key is done in steps: no failure after the first may claim that nothing was done."""

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from gateway.call import Call, Endpoint, State
from gateway.inventory import create_inventory
from inventory.batcher import Answer
from inventory.catalogue import Creation
from inventory.hot_path import Decision, Failure
from inventory.operations import Result
from inventory.outcomes import Outcome
from kernel.errors import StoreUnavailable
from kernel.problems import Problem

BODY = {"inventory_key": "k", "item_id": "i", "inventory_mode": "QTY", "init_quantity": 5, "request_no": "r"}
ADJUSTED = Result(Outcome.DONE, detail=["k", 5, 0, 0, 0, 0, 1, 1])


class Created:
    """A catalogue that makes the key and then loses MySQL."""

    async def create(self, _key: object) -> Creation:
        return Creation.CREATED

    async def read_configs(self, _keys: object) -> Any:
        raise StoreUnavailable("mysql", "not_executed", "gone")


def call_with(decision: Decision) -> Call:
    async def submit(_operations: object) -> Answer:
        return Answer([decision], 1, "broker", 1)

    async def receive() -> Any:
        return {"type": "http.request", "body": msgspec.json.encode(BODY), "more_body": False}

    state = {"catalogue": Created(), "batcher": SimpleNamespace(submit=submit)}
    endpoint = SimpleNamespace(body_bytes_max=10_000)
    call = Call(cast("State", state), receive, cast("Endpoint", endpoint), ())
    call.principal = cast("Any", SimpleNamespace(tenant="t", name="n", prefix=""))
    return call


@pytest.mark.parametrize(
    "decision",
    [
        ADJUSTED,
        Failure("SHARD_CLOSED", "not_executed", "between two epochs"),
        Failure("UNAVAILABLE", "unknown", "not confirmed"),
        Result(Outcome.KEY_FROZEN, detail=["k"]),
    ],
)
async def test_a_failure_after_the_key_was_made_is_unknown(decision: Decision) -> None:
    with pytest.raises(Problem) as raised:
        await create_inventory(call_with(decision))
    assert raised.value.status == 503
    assert raised.value.extra["outcome"] == "unknown"


async def test_a_refusal_after_the_key_was_made_stays_what_it_is() -> None:
    with pytest.raises(Problem) as raised:
        await create_inventory(call_with(Result(Outcome.REQUEST_CONFLICT)))
    assert (raised.value.code, raised.value.extra) == ("REQUEST_CONFLICT", {})
