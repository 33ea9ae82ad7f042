"""A running system for one test: fresh database, empty Redis and queue, roles as processes that a test may kill."""

import asyncio
import hashlib
import json
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import asyncmy
import httpx2
import redis.asyncio
from aio_pika import connect as amqp_connect

from kernel import amqp_topology
from kernel.settings import Settings
from sql.grant import grant
from sql.migrate import migrate
from stockgate.accounts import RoleName
from stockgate.ports import choose_port
from stockgate.processes import Child, log_tail
from stockgate.servers import Servers
from tests.flow.wire import Wire, WireReply

SCOPES = ("orders", "inventory", "ops", "metrics")
OTHER_TENANT = "other-orders"
"""Name of a key with the scope `orders` whose tenant is `other`; all others belong to `demo`."""
POLL_S = 0.05


class NotReachedError(AssertionError):
    """Something that had to become true did not within its limit; the message holds the last view and the logs."""


class Role:
    """One process of ours. `failpoints` arms it for its next start only."""

    def __init__(self, world: "World", name: str, arguments: Sequence[str], port: int = 0) -> None:
        self.world = world
        self.name = name
        self.arguments = list(arguments)
        self.port = port
        self.metrics_port = 0
        """Where it alone answers `/metrics`; 0 = nowhere."""
        self.child = Child(name, world.directory / "log" / f"{name}.log")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """What it is told: the world's settings, under the account that its kind of process has in production."""
        settings = self.world.environment
        names = {"redis": "STOCKGATE_REDIS_URL", "mysql": "STOCKGATE_MYSQL_URL", "amqp": "STOCKGATE_AMQP_URL"}
        role = cast("RoleName", self.arguments[0])
        urls = self.world.servers.as_role(role, {name: settings[setting] for name, setting in names.items()})
        plain = {name: value for name, value in settings.items() if name not in names.values()}
        plain["STOCKGATE_METRICS_PORT"] = str(self.metrics_port)
        return {**plain, **{names[name]: url for name, url in urls.items()}}

    def spawn(self, failpoints: str = "", **environment: str) -> None:
        """Start the process; does not wait until it is ready."""
        self.child.spawn(
            [sys.executable, "-m", "stockgate", *self.arguments],
            env={**os.environ, **self.environment(), **environment, "STOCKGATE_FAILPOINTS": failpoints},
        )

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        await self.child.kill(number)

    async def stop(self) -> None:
        await self.child.stop()

    async def died(self, limit_s: float) -> None:
        """Wait until the process has ended (at its failpoint)."""
        try:
            async with asyncio.timeout(limit_s):
                await self.child.wait()
        except TimeoutError:
            raise NotReachedError(
                f"{self.name} did not reach its failpoint:\n{log_tail(self.child.log_path)}"
            ) from None

    async def stopped(self, limit_s: float) -> None:
        """Wait until the process stands still (SIGSTOP at its failpoint)."""
        deadline = time.monotonic() + limit_s
        while self.child.alive():
            stat = await asyncio.to_thread(Path(f"/proc/{self.child.pid}/stat").read_text)
            if stat.rpartition(")")[2].split()[0] == "T":
                return
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_S)
        raise NotReachedError(f"{self.name} did not stop at its failpoint:\n{log_tail(self.child.log_path)}")


class World:
    """Gateways, a persist worker, a reconciler and clients of the three servers.

    Use as `async with World(servers, tmp_path) as world`. Every role can be killed and spawned again at any time.
    """

    def __init__(
        self,
        servers: Servers,
        directory: Path,
        *,
        gateways: int = 2,
        leaders: int = 0,
        reconciler: bool = True,
        metrics_ports: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.servers = servers
        self.directory = directory
        self.database = f"stockgate_{secrets.token_hex(4)}"
        self.mysql_url = servers.mariadb.url.rsplit("/", 1)[0] + "/" + self.database
        self.keys = {name: secrets.token_urlsafe(24) for name in (*SCOPES, OTHER_TENANT)}
        self.environment = {
            "STOCKGATE_REDIS_URL": servers.redis.url,
            "STOCKGATE_MYSQL_URL": self.mysql_url,
            "STOCKGATE_AMQP_URL": servers.rabbitmq.url,
            "STOCKGATE_API_KEYS_FILE": str(directory / "api_keys.json"),
            "STOCKGATE_RECONCILE_INTERVAL_S": "1",
            "STOCKGATE_HOLD_GRACE_MS": "0",
            **(settings or {}),
        }
        # With leader processes of their own, gateways do not stand as candidates: a test then knows whom it kills.
        if leaders:
            self.environment["STOCKGATE_RUN_LEADER"] = "false"
        ports: set[int] = set()
        self.gateways: list[Role] = []
        for number in range(gateways):
            port = choose_port(ports)
            ports.add(port)
            self.gateways.append(Role(self, f"gateway-{number + 1}", ["gateway", "--port", str(port)], port))
        self.leaders = [Role(self, f"leader-{number + 1}", ["leader"]) for number in range(leaders)]
        self.worker = Role(self, "persist-worker", ["persist-worker"])
        self.second_worker = Role(self, "persist-worker-2", ["persist-worker"])
        """Not started by itself: a test starts it beside the first one."""
        self.reconciler = Role(self, "reconciler", ["reconciler"]) if reconciler else None
        if metrics_ports:
            for role in self.roles:
                role.metrics_port = choose_port(ports)
                ports.add(role.metrics_port)
        self.http = httpx2.AsyncClient(timeout=10)
        self.wire = Wire()

    @property
    def roles(self) -> list[Role]:
        first = [*self.gateways, *self.leaders, self.worker, self.second_worker]
        return [*first, *([self.reconciler] if self.reconciler else [])]

    def settings(self) -> Settings:
        """The settings that the roles see."""
        names = {name.removeprefix("STOCKGATE_").lower(): value for name, value in self.environment.items()}
        return Settings.model_validate(names)

    async def __aenter__(self) -> Self:
        (self.directory / "log").mkdir(parents=True, exist_ok=True)
        api_keys = [
            {
                "name": name,
                "tenant": "other" if name == OTHER_TENANT else "demo",
                "scopes": ["orders" if name == OTHER_TENANT else name],
                "sha256": hashlib.sha256(key.encode()).hexdigest(),
                "rate_per_s": 1_000_000,
            }
            for name, key in self.keys.items()
        ]
        (self.directory / "api_keys.json").write_text(json.dumps(api_keys))
        await self.empty_servers()
        try:
            await migrate(self.settings())
            await grant(self.settings())
            for role in self.roles:
                if role is not self.second_worker and role not in self.leaders[1:]:
                    role.spawn()
            await self.ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        self.wire.close()
        await asyncio.gather(*(role.child.kill(signal.SIGCONT) for role in self.roles))
        await asyncio.gather(*(role.stop() for role in self.roles))
        await self.servers.mariadb.execute(f"DROP DATABASE IF EXISTS {self.database}")

    async def empty_servers(self) -> None:
        """Nothing of an earlier test may answer for this one."""
        await self.servers.mariadb.execute(f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
        async with redis.asyncio.Redis.from_url(self.servers.redis.url) as client:
            await client.flushall()
        connection = await amqp_connect(self.servers.rabbitmq.url)
        async with connection:
            channel = await connection.channel()
            await channel.queue_delete(amqp_topology.log_queue(0))

    async def ready(self, limit_s: float = 40.0) -> None:
        """Wait until every gateway that lives says that it is ready."""

        async def all_ready() -> bool:
            answers = [await self.http.get(f"{role.url}/health/ready") for role in self.gateways if role.child.alive()]
            return bool(answers) and all(answer.status_code == 200 for answer in answers)

        await self.until(all_ready, limit_s, "gateways ready")

    async def until(self, condition: Callable[[], Awaitable[bool]], limit_s: float, what: str) -> None:
        """Poll a condition; transport errors count as not yet. Raises NotReachedError with the ends of all logs."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                if await condition():
                    return
                error: Exception | None = None
            except (httpx2.TransportError, OSError, asyncmy.errors.Error, redis.asyncio.RedisError) as caught:
                error = caught
            if time.monotonic() > deadline:
                logs = "\n".join(f"  {role.name}:\n{log_tail(role.child.log_path)}" for role in self.roles)
                raise NotReachedError(f"not within {limit_s} s: {what} ({error})\n{logs}")
            await asyncio.sleep(POLL_S)

    def headers(self, scope: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[scope]}"}

    async def post(self, path: str, body: object, *, scope: str = "orders", gateway: int = 0) -> WireReply:
        """One call to one gateway, as JSON, without any repeat. Raises ConnectionError and TimeoutError."""
        return await self.wire.call("POST", self.gateways[gateway].port, path, self.headers(scope), body)

    async def get(self, path: str, *, scope: str = "orders", gateway: int = 0) -> WireReply:
        return await self.wire.call("GET", self.gateways[gateway].port, path, self.headers(scope))

    async def create_key(self, key: str, quantity: int) -> None:
        """A key with stock; raises on any refusal."""
        body = {
            "inventory_key": key,
            "item_id": "item",
            "inventory_mode": "QTY",
            "init_quantity": quantity,
            "request_no": f"create-{hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest()[:16]}",
        }
        answer = await self.post("/v1/inventory", body, scope="inventory")
        assert answer.status_code in {200, 201}, answer.text

    async def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Read MySQL directly, beside everything of ours."""
        server = self.servers.mariadb
        connection = await asyncmy.connect(
            host="127.0.0.1",
            port=server.port,
            user="admin",
            password=server.passwords.get("mariadb-admin"),
            db=self.database,
            autocommit=True,
        )
        try:
            async with connection.cursor() as cursor:
                await cursor.execute(statement, parameters)
                return list(await cursor.fetchall())
        finally:
            connection.close()

    async def shard(self) -> dict[str, Any]:
        """The shard's row by column name."""
        columns = ("mode", "epoch", "term", "applied_term", "applied_m", "applied_digest", "wanted_m", "alarm")
        rows = await self.query("SELECT " + ", ".join(columns) + " FROM shard WHERE shard_no = 0")
        return dict(zip(columns, rows[0], strict=True))

    def redis(self) -> Any:
        """A client of its own for looking at Redis and for breaking it."""
        return redis.asyncio.Redis.from_url(self.servers.redis.url)

    async def quiet(self, limit_s: float = 30.0) -> None:
        """Wait until everything decided is confirmed and applied, in an open epoch (invariant 6)."""

        async def settled() -> bool:
            row = await self.shard()
            async with self.redis() as client:
                head = await client.hgetall(f"{{sg:0}}:{row['epoch']}:head")
            m = int(head.get(b"m", -1))
            return (
                row["mode"] == "hot"
                and head.get(b"fence") == b"0"
                and m == row["applied_m"] == int(head.get(b"confirmed_m", -2))
                and head[b"digest"].decode() == row["applied_digest"]
            )

        await self.until(settled, limit_s, "quiet")
