"""A gateway without a socket, with its leader and a persist worker in this event loop, on real servers."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from gateway.app import open_state
from gateway.call import Lifecycle, State
from gateway.contract import contract
from gateway.dispatch import Dispatch
from kernel.logs import get_logger
from kernel.mysql_door import Statement
from kernel.settings import Settings
from persist_worker.main import work
from stockgate.servers import Servers
from tests.cancelling import EveryStep, at_rest
from tests.held import held
from tests.integration.http_world import fresh_settings

STOCK: Final = 100_000
ECHO: Final = Statement("SELECT %s")
QUIET_LIMIT_S: Final = 30.0


class Reply:
    """What was sent to the caller; status 0 where nothing was."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class GatewayWorld:
    """A gateway without a socket: calls go straight to the application."""

    def __init__(self, settings: Settings, keys: dict[str, str], state: State, steps: EveryStep) -> None:
        self.settings = settings
        self.state = state
        self.steps = steps
        self._keys = keys
        self._numbers = iter(range(1, 1_000_000))
        self._dispatch = Dispatch(contract("test"), self._nobody, settings, get_logger())
        self.before: set[asyncio.Task[Any]] = set()
        self.key = ""

    @classmethod
    @asynccontextmanager
    async def open(cls, servers: Servers, directory: Path, **changed: Any) -> AsyncGenerator["GatewayWorld"]:
        settings, keys = await fresh_settings(servers, directory, **changed)
        steps, stop = EveryStep(), asyncio.Event()
        async with steps.installed(), asyncio.TaskGroup() as group:
            worker = group.create_task(work(settings, stop))
            async with open_state(settings, Lifecycle()) as state:
                world = cls(settings, keys, state, steps)
                await world._until_ready()
                world.key = await world.stocked(STOCK)
                world.before = asyncio.all_tasks()
                yield world
            stop.set()
            await worker

    @staticmethod
    async def _nobody(*_: object) -> None:
        raise AssertionError("every path that is asked for here has an endpoint")

    def fresh(self, stem: str) -> str:
        return f"{stem}-{next(self._numbers)}"

    async def _until_ready(self) -> None:
        async with asyncio.timeout(30):
            while (await self.call("GET", "/health/ready")).status != 200:
                await asyncio.sleep(0.02)
            await self.state["confirmations"].subscribed()

    async def answer(self, reply: Reply, method: str, path: str, body: Any = None, caller: str = "all") -> None:
        """One call, as the server would make it. Its body comes a step late, and sending takes a step."""
        content = b"" if body is None else json.dumps(body).encode()
        path, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "raw_path": path.encode(),
            "path": path,
            "query_string": query.encode(),
            "headers": [
                (b"authorization", f"Bearer {self._keys[caller]}".encode()),
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(content)),
            ],
            "state": self.state,
        }

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: Any) -> None:
            await asyncio.sleep(0)
            if message["type"] == "http.response.start":
                reply.status = message["status"]
            else:
                reply.body += message["body"]

        await self._dispatch(scope, receive, send)

    async def call(self, method: str, path: str, body: Any = None, caller: str = "all") -> Reply:
        reply = Reply()
        await self.answer(reply, method, path, body, caller)
        return reply

    async def stocked(self, quantity: int, prefix: str = "") -> str:
        key = prefix + self.fresh("key")
        reply = await self.call("POST", "/v1/inventory", self.new_key(key, quantity))
        assert reply.status == 201, reply.body
        return key

    def new_key(self, key: str, quantity: int) -> dict[str, Any]:
        return {
            "inventory_key": key,
            "item_id": "item-1",
            "inventory_mode": "QTY",
            "init_quantity": quantity,
            "request_no": self.fresh("create"),
        }

    def order(self, key: str) -> dict[str, Any]:
        return {"order_id": self.fresh("order"), "lines": [{"inventory_key": key, "qty": 1}]}

    async def reserved(self, key: str, caller: str = "all", then: str = "") -> str:
        """A new order that holds one, and perhaps is moved on."""
        order = self.order(key)
        assert (await self.call("POST", "/v1/reservations", order, caller)).status == 201
        path = f"/v1/reservations/{order['order_id']}"
        if then:
            assert (await self.call("POST", f"{path}/{then}", {}, caller)).status == 200
        return path

    async def quantities(self, key: str) -> tuple[int, int, int, int, int, int]:
        """Available, reserved, sold, consumed, locked and their sum as the gateway shows them."""
        found = (await self.call("GET", f"/v1/inventory/{quote(key, safe='')}")).json
        names = ("available", "reserved", "sold", "consumed", "locked", "total")
        return tuple(found[name] for name in names)  # pyright: ignore[reportReturnType]

    async def check_at_rest(self) -> None:
        """No task, request, place or foreign answer is left of what was cancelled."""
        batcher, database = self.state["batcher"], self.state["catalogue"]._database
        await at_rest(self.before, lambda: not batcher._open and not batcher._open_operations)
        count = self.settings.mysql_pool_max
        answers = await asyncio.gather(*(database.fetch_all(ECHO, (n,)) for n in range(count)))
        assert answers == [[(n,)] for n in range(count)]
        token = self.fresh("token").encode()
        assert await self.state["redis"].command("ECHO", token) == token

    async def check_audit(self) -> None:
        """Both stores have the same, and every invariant holds."""
        async with asyncio.timeout(QUIET_LIMIT_S):
            while True:
                shard = (await self.call("GET", "/ops/status")).json["shards"][0]
                if shard["log_head_m"] == shard["applied_m"]:
                    break
                await asyncio.sleep(0.05)
        audit = (await self.call("GET", "/ops/audit")).json
        assert audit["ok"], [check for check in audit["checks"] if not check["ok"]]


def held_open(servers: Servers, directory: Path, **changed: Any) -> AbstractAsyncContextManager[GatewayWorld]:
    """`GatewayWorld.open` for fixtures."""
    return held(GatewayWorld.open(servers, directory, **changed))
