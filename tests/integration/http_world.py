"""A whole system in one event loop: a gateway with its leader on a real socket, a persist worker, real servers."""

import asyncio
import hashlib
import json
import secrets
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx2

from client import Retries, StockgateClient
from gateway import main
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from persist_worker.main import work
from sql.grant import grant
from sql.migrate import migrate
from stockgate.servers import Servers
from tests.as_role import as_role
from tests.held import held

READY_LIMIT_S = 30.0


@dataclass(frozen=True)
class Caller:
    """An API key of the tests."""

    tenant: str = "acme"
    scopes: tuple[str, ...] = ("orders", "inventory", "ops", "metrics")
    more: Mapping[str, Any] | None = None


CALLERS: Mapping[str, Caller] = {
    "all": Caller(),
    "orders": Caller(scopes=("orders",)),
    "inventory": Caller(scopes=("inventory",)),
    "ops": Caller(scopes=("ops",)),
    "metrics": Caller(scopes=("metrics",)),
    "stock": Caller(scopes=("inventory", "ops", "metrics")),
    "supply": Caller(scopes=("supply",)),
    "other_tenant": Caller(tenant="rival"),
    "confined": Caller(more={"prefix": "shop-a/"}),
    "expired": Caller(more={"expires_at": "2020-01-01T00:00:00Z"}),
    "slow": Caller(more={"rate_per_s": 0.001, "burst": 2}),
}


class HttpWorld:
    """What the tests speak to. `keys` are plain API keys by caller."""

    def __init__(self, servers: Servers, settings: Settings, keys: Mapping[str, str], url: str) -> None:
        self.servers = servers
        self.settings = settings
        self.keys = keys
        self.url = url
        self.stop_gateway = asyncio.Event()
        self.http = httpx2.AsyncClient(base_url=url, timeout=20, trust_env=False)
        self.numbers = iter(range(1, 1_000_000))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, caller: str = "all", **retries: Any) -> StockgateClient:
        return StockgateClient(self.url, self.keys[caller], retries=Retries(**retries))

    def fresh(self, stem: str) -> str:
        """A name that no other test has used."""
        return f"{stem}-{next(self.numbers)}"

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        caller: str | None = "all",
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> httpx2.Response:
        """One request; `raw` instead of `body` is sent as it is."""
        sent = dict(headers or {})
        if caller is not None:
            sent["authorization"] = f"Bearer {self.keys[caller]}"
        content = raw if raw is not None else (None if body is None else json.dumps(body).encode())
        return await self.http.request(method, path, content=content, headers=sent)

    async def stocked(self, quantity: int, key: str = "") -> str:
        """A new key with this much available."""
        key = key or self.fresh("key")
        body = {
            "inventory_key": key,
            "item_id": "item-1",
            "inventory_mode": "QTY",
            "init_quantity": quantity,
            "request_no": self.fresh("create"),
        }
        reply = await self.call("POST", "/v1/inventory", body)
        assert reply.status_code == 201, reply.text
        return key

    async def reserved(self, key: str, qty: int, **more: Any) -> str:
        """A new order that holds this much."""
        order_id = self.fresh("order")
        body = {"order_id": order_id, "lines": [{"inventory_key": key, "qty": qty}], **more}
        reply = await self.call("POST", "/v1/reservations", body)
        assert reply.status_code == 201, reply.text
        return order_id

    async def quantities(self, key: str) -> tuple[int, int, int, int, int]:
        """Available, reserved, sold, consumed, locked as the gateway shows them."""
        found = (await self.call("GET", f"/v1/inventory/{quote(key, safe='')}")).json()
        return (found["available"], found["reserved"], found["sold"], found["consumed"], found["locked"])

    async def until_ready(self) -> None:
        last = "no answer"
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                while True:
                    try:
                        reply = await self.http.get("/health/ready")
                        if reply.status_code == 200:
                            return
                        last = reply.text
                    except httpx2.TransportError as error:
                        last = repr(error)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"not ready after {READY_LIMIT_S} s: {last}") from None

    async def settled(self, limit_s: float = 15.0) -> None:
        """Wait until MySQL has every entry of the log."""
        async with asyncio.timeout(limit_s):
            while True:
                shard = (await self.call("GET", "/ops/status", caller="ops")).json()["shards"][0]
                if shard["log_head_m"] == shard["applied_m"]:
                    return
                await asyncio.sleep(0.05)

    @classmethod
    @asynccontextmanager
    async def open(cls, servers: Servers, directory: Path, **changed: Any) -> AsyncGenerator[Self]:
        """A fresh database, an empty Redis database and a virtual host of its own, and all roles running on them."""
        settings, keys = await fresh_settings(servers, directory, **changed)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        world = cls(servers, settings, keys, url)
        stop_worker = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            # Both live in this process: a port for metrics is the gateway's.
            worker_settings = as_role(servers, settings, "persist-worker").model_copy(update={"metrics_port": 0})
            worker = group.create_task(work(worker_settings, stop_worker))
            gateway_settings = as_role(servers, settings, "gateway")
            gateway = group.create_task(main.serve(gateway_settings, listener, world.stop_gateway))
            try:
                await world.until_ready()
                yield world
            finally:
                await world.http.aclose()
                world.stop_gateway.set()
                assert await gateway == 0
                stop_worker.set()
                await worker


def held_open(servers: Servers, directory: Path, **changed: Any) -> AbstractAsyncContextManager[HttpWorld]:
    """`HttpWorld.open` for fixtures."""
    return held(HttpWorld.open(servers, directory, **changed))


async def fresh_settings(servers: Servers, directory: Path, **changed: Any) -> tuple[Settings, dict[str, str]]:
    """Settings for a new system on these servers, migrated, and its plain API keys by caller.

    The logins are those of the servers' owner, for the test itself; processes run `as_role`.
    """
    name = "http" + secrets.token_hex(3)
    await servers.mariadb.execute(f"CREATE DATABASE stockgate_{name}")
    await servers.rabbitmq.add_vhost(name)
    keys = {caller: secrets.token_urlsafe(24) for caller in CALLERS}
    keys_file = directory / f"api_keys_{name}.json"
    keys_file.write_text(json.dumps([_entry(caller, keys[caller]) for caller in CALLERS]))
    values: dict[str, Any] = {
        "redis_url": servers.redis.url.removesuffix("/0") + "/6",
        "mysql_url": servers.mariadb.url + f"_{name}",
        "amqp_url": servers.rabbitmq.url.removesuffix("/" + servers.rabbitmq.vhost) + f"/{name}",
        "api_keys_file": keys_file,
        "hold_grace_ms": 0,
        **changed,
    }
    settings = Settings(**values)
    redis = RedisDoor.open(settings, name="test")
    await redis.command("FLUSHDB")
    await redis.close()
    await migrate(settings)
    await grant(settings)
    return settings, keys


def _entry(caller: str, key: str) -> dict[str, Any]:
    about = CALLERS[caller]
    return {
        "name": caller,
        "tenant": about.tenant,
        "scopes": list(about.scopes),
        "sha256": hashlib.sha256(key.encode()).hexdigest(),
        **(about.more or {}),
    }
