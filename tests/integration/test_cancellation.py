"""Every handler cancelled at every await: nothing is lost or done twice, a repeat tells what happened, all goes on.

The whole system runs in this event loop: gateway, leader, persist worker, on real servers. Each call is cancelled once at
each of its own waits, and the hot ones at each step that anything in the system takes until they are answered.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from gateway.contract import contract
from stockgate.servers import Servers
from tests.cancelling import Ended, When, cancelled_at, sweep
from tests.integration.gateway_world import GatewayWorld, Reply, held_open


class Trial:
    """One call that is cancelled, and then made again with the same id."""

    def __init__(
        self,
        world: GatewayWorld,
        request: tuple[str, str, Any],
        caller: str = "all",
        repeated: frozenset[int] = frozenset({200, 201}),
    ) -> None:
        self.world = world
        self.request = request
        self.caller = caller
        self.repeated = repeated
        self.reply = Reply()

    def begin(self) -> Coroutine[Any, Any, None]:
        return self.world.answer(self.reply, *self.request, self.caller)

    async def check(self, ended: Ended) -> Reply:
        """What was heard is true, and the repeat succeeds; what it says is returned."""
        heard = self.reply
        if ended.cancelled and heard.status == 503 and heard.body:
            assert heard.json["outcome"] == "unknown"
        elif heard.status:
            assert heard.status in self.repeated, heard.body
        again = await self.world.call(*self.request, self.caller)
        assert again.status in self.repeated, again.body
        await self.world.check_at_rest()
        return again


@pytest.fixture
async def world(servers: Servers, tmp_path: Path) -> AsyncGenerator[GatewayWorld]:
    async with held_open(servers, tmp_path) as world:
        yield world


# --- what is called -----------------------------------------------------------------------------------------------------

Prepare = Callable[[GatewayWorld], Awaitable[Trial]]

RESERVATION: Final = "/v1/reservations/{order_id}"
INVENTORY: Final = "/v1/inventory/{key}"


async def reserve(world: GatewayWorld, caller: str = "all", key: str = "") -> Trial:
    return Trial(world, ("POST", "/v1/reservations", world.order(key or world.key)), caller)


async def reserve_cold(world: GatewayWorld) -> Trial:
    """Of a key that Redis does not have yet."""
    key = await world.stocked(0)
    created = await world.call("POST", f"/v1/inventory/{key}/adjust", adjustment(world))
    assert created.status == 200
    return await reserve(world, key=key)


async def settle(world: GatewayWorld, move: str, after: str = "", body: Any = None) -> Trial:
    return Trial(world, ("POST", f"{await world.reserved(world.key, then=after)}/{move}", body or {}))


async def confirm_confined(world: GatewayWorld) -> Trial:
    """Somebody who is confined to a prefix: his order is looked at before it is decided."""
    key = await world.stocked(1, "shop-a/")
    return Trial(world, ("POST", f"{await world.reserved(key, 'confined')}/confirm", {}), "confined")


async def operations(world: GatewayWorld, caller: str = "all") -> Trial:
    """Two orders, one of them moved on, in one request."""
    key = world.key if caller == "all" else await world.stocked(9, "shop-a/")
    first, second = world.order(key), world.order(key)
    asked = [
        {"op": "reserve", **first},
        {"op": "confirm", "order_id": first["order_id"]},
        {"op": "reserve", **second},
    ]
    return Trial(world, ("POST", "/v1/operations", {"operations": asked}), caller)


async def create(world: GatewayWorld) -> Trial:
    return Trial(world, ("POST", "/v1/inventory", world.new_key(world.fresh("made"), 7)))


def adjustment(world: GatewayWorld) -> dict[str, Any]:
    return {"delta": 1, "request_no": world.fresh("adjust"), "reason": "counted"}


async def adjust(world: GatewayWorld) -> Trial:
    return Trial(world, ("POST", f"/v1/inventory/{world.key}/adjust", adjustment(world)))


async def lock(world: GatewayWorld, move: str = "lock") -> Trial:
    body = {"qty": 1, "request_no": world.fresh(move), "reason": "broken"}
    if move == "unlock":
        assert (
            await world.call("POST", f"/v1/inventory/{world.key}/lock", {**body, "request_no": world.fresh("lock")})
        ).status == 200
    return Trial(world, ("POST", f"/v1/inventory/{world.key}/{move}", body))


async def read(world: GatewayWorld, path: str, caller: str = "all") -> Trial:
    return Trial(world, ("GET", path, None), caller)


async def query(world: GatewayWorld) -> Trial:
    return Trial(world, ("POST", "/v1/inventory/query", {"inventory_keys": [world.key, "nobody's"]}))


async def ask_reconcile(world: GatewayWorld) -> Trial:
    return Trial(world, ("POST", "/ops/reconcile", {"dry_run": True, "keys": [world.key]}), repeated=frozenset({202}))


async def switch_mode(world: GatewayWorld) -> Trial:
    """To the mode that it is in: the lock of the row and all that is asked before anything is changed."""
    return Trial(world, ("PUT", "/ops/mode", {"mode": "hot", "reason": "to be sure"}))


async def abort_switch(world: GatewayWorld) -> Trial:
    return Trial(world, ("DELETE", "/ops/mode/switch?reason=none-runs", None), repeated=frozenset({404}))


async def read_reconcile(world: GatewayWorld) -> Trial:
    task = (await world.call("POST", "/ops/reconcile", {"dry_run": True, "keys": [world.key]})).json["id"]
    return await read(world, f"/ops/reconcile/{task}")


async def read_named(world: GatewayWorld, template: str) -> Trial:
    """A call that only reads, about the shared key or a new order."""
    order_id = (await world.reserved(world.key)).rpartition("/")[2] if "{order_id}" in template else ""
    return await read(world, template.replace("{key}", world.key).replace("{order_id}", order_id))


HOT: Final[dict[tuple[str, str], Prepare]] = {
    ("POST", "/v1/reservations"): reserve,
    ("POST", f"{RESERVATION}/confirm"): partial(settle, move="confirm"),
    ("POST", f"{RESERVATION}/release"): partial(settle, move="release", body={"reason": "cancelled"}),
    ("POST", f"{RESERVATION}/consume"): partial(settle, move="consume", after="confirm"),
    ("POST", f"{RESERVATION}/return"): partial(settle, move="return", after="confirm", body={"reason": "changed mind"}),
    ("POST", f"{RESERVATION}/extend"): partial(settle, move="extend", body={"ttl_seconds": 3_000}),
    ("GET", RESERVATION): partial(read_named, template=RESERVATION),
    ("POST", "/v1/operations"): operations,
}
OTHERS: Final[dict[tuple[str, str], Prepare]] = {
    ("POST", "/v1/inventory"): create,
    ("POST", "/v1/inventory/query"): query,
    ("POST", f"{INVENTORY}/adjust"): adjust,
    ("POST", f"{INVENTORY}/lock"): lock,
    ("POST", f"{INVENTORY}/unlock"): partial(lock, move="unlock"),
    ("POST", "/ops/reconcile"): ask_reconcile,
    ("GET", "/ops/reconcile/{id}"): read_reconcile,
    ("PUT", "/ops/mode"): switch_mode,
    ("DELETE", "/ops/mode/switch"): abort_switch,
}


def stride_of(call: tuple[str, str]) -> int:
    """Every place of the hot calls. The others have many waits of one kind; an audit would go on in the server for long."""
    if call in HOT:
        return 1
    return 29 if call[1] == "/ops/audit" else 3


THOROUGHLY: Final = frozenset({("POST", "/v1/reservations"), ("POST", f"{RESERVATION}/confirm")})
VARIANTS: Final[dict[str, Prepare]] = {
    "a key that is not loaded": reserve_cold,
    "a confined caller's order": confirm_confined,
    "a confined caller's operations": partial(operations, caller="confined"),
}


def every_call() -> dict[tuple[str, str], Prepare]:
    """All endpoints of the contract. What only reads needs nothing said about it."""
    reads = {
        ("GET", endpoint.template): partial(read_named, template=endpoint.template)
        for endpoint in contract("test")
        if endpoint.method == "GET"
    }
    return {**HOT, **OTHERS, **{call: reads[call] for call in reads.keys() - HOT.keys() - OTHERS.keys()}}


# --- what must hold -----------------------------------------------------------------------------------------------------


class Books:
    """What the shared key must hold, counted from the repeats, each of which was answered 2xx."""

    def __init__(self, before: tuple[int, ...]) -> None:
        self._now = list(before)

    MOVES: Final = {
        "reserve": (-1, 1, 0, 0, 0),
        "confirm": (0, -1, 1, 0, 0),
        "release": (1, -1, 0, 0, 0),
        "consume": (0, 0, -1, 1, 0),
        "return": (1, 0, -1, 0, 0),
        "adjust": (1, 0, 0, 0, 0),
        "lock": (-1, 0, 0, 0, 1),
        "unlock": (1, 0, 0, 0, -1),
    }

    def book(self, *moves: str) -> None:
        for move in moves:
            for place, change in enumerate(self.MOVES[move]):
                self._now[place] += change
                self._now[5] += change

    @property
    def now(self) -> tuple[int, ...]:
        return tuple(self._now)


BOOKED: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("POST", "/v1/reservations"): ("reserve",),
    ("POST", f"{RESERVATION}/confirm"): ("reserve", "confirm"),
    ("POST", f"{RESERVATION}/release"): ("reserve", "release"),
    ("POST", f"{RESERVATION}/consume"): ("reserve", "confirm", "consume"),
    ("POST", f"{RESERVATION}/return"): ("reserve", "confirm", "return"),
    ("POST", f"{RESERVATION}/extend"): ("reserve",),
    ("POST", "/v1/operations"): ("reserve", "confirm", "reserve"),
    ("POST", f"{INVENTORY}/adjust"): ("adjust",),
    ("POST", f"{INVENTORY}/lock"): ("lock",),
    ("POST", f"{INVENTORY}/unlock"): ("lock", "unlock"),
}


async def sweep_call(
    world: GatewayWorld, call: tuple[str, str], cancel: Callable[[int, Any], Awaitable[Ended]], stride: int
) -> int:
    """Cancel one call at each place in turn, at least once; how often it was cancelled."""
    prepare = every_call()[call]
    books = Books(await world.quantities(world.key))

    async def attempt(n: int) -> Ended:
        trial = await prepare(world)
        ended = await cancel(n, trial.begin())
        again = await trial.check(ended)
        books.book(*BOOKED.get(call, ("reserve",) if "{order_id}" in call[1] else ()))
        assert await world.quantities(world.key) == books.now, f"cancelled at {n}"
        if prepare is create:
            assert (again.json["available"], again.json["total"]) == (7, 7)
        return ended

    cancelled = await sweep(attempt, stride=stride)
    assert cancelled, f"{call} was never cancelled"
    return cancelled


def test_every_endpoint_is_cancelled_here() -> None:
    missing = {(endpoint.method, endpoint.template) for endpoint in contract("test")} - every_call().keys()
    assert not missing, f"say in OTHERS how to call these: {missing}"


@pytest.mark.timeout(300)
async def test_every_call_is_cancelled_at_its_own_waits(world: GatewayWorld) -> None:
    for call in every_call():
        stride = stride_of(call)
        if call in HOT:
            for when in When:
                await sweep_call(world, call, partial(cancelled_at, when=when), stride)
        else:
            # In turn, so that each of both comes at every second of the places.
            await sweep_call(
                world, call, lambda n, work: cancelled_at(n, work, When.BEGINS if n & 1 else When.IS_OVER), stride
            )
    await world.check_audit()


@pytest.mark.timeout(300)
async def test_every_hot_call_is_cancelled_at_each_step_of_the_system(world: GatewayWorld) -> None:
    for call in HOT:
        # Settling calls differ in little but the answer of the script: every third place of each is enough.
        cancelled = await sweep_call(world, call, world.steps.cancelled_at, 1 if call in THOROUGHLY else 3)
        assert cancelled >= 2, f"{call} was cancelled {cancelled} times only"
    for name, prepare in VARIANTS.items():

        async def attempt(n: int, prepare: Prepare = prepare) -> Ended:
            trial = await prepare(world)
            ended = await world.steps.cancelled_at(n, trial.begin())
            await trial.check(ended)
            return ended

        cancelled = await sweep(attempt, stride=2)
        assert cancelled >= 5, f"{name}: cancelled {cancelled} times only"
    await world.check_audit()
