"""What the tests of a running system share: asking over HTTP, looking into every store, the queue, the command line."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import asyncmy
import msgspec
from aio_pika import DeliveryMode, Message, connect
from aio_pika.abc import AbstractChannel, AbstractQueue

from inventory.moves import LineState
from kernel.amqp_topology import LOG_QUEUE_ARGUMENTS, log_queue
from tests.flow.wire import Wire, WireReply
from tests.flow.world import World
from tests.proxy import Proxy, proxy_to

Answer = TypeVar("Answer")

# --- asking -----------------------------------------------------------------------------------------------------------


def lines(*pairs: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"inventory_key": key, "qty": qty} for key, qty in pairs]


async def reserve(
    world: World, order_id: str, *pairs: tuple[str, int], gateway: int = 0, scope: str = "orders", **more: Any
) -> WireReply:
    body = {"order_id": order_id, "lines": lines(*pairs), **more}
    return await world.post("/v1/reservations", body, gateway=gateway, scope=scope)


async def move(
    world: World, order_id: str, verb: str, *, gateway: int = 0, scope: str = "orders", **body: Any
) -> WireReply:
    """confirm, release, consume, return or extend; `reason` has a default where one is needed."""
    if verb in {"release", "return"}:
        body = {"reason": "cancelled", **body}
    return await world.post(f"/v1/reservations/{order_id}/{verb}", body, gateway=gateway, scope=scope)


async def operations(world: World, *asked: dict[str, Any], gateway: int = 0) -> list[dict[str, Any]]:
    """The results of one `POST /v1/operations`."""
    reply = await world.post("/v1/operations", {"operations": list(asked)}, gateway=gateway)
    assert reply.status_code == 200, reply.text
    return reply.json()["results"]


async def change(world: World, key: str, verb: str, gateway: int = 0, **body: Any) -> WireReply:
    """adjust, lock or unlock."""
    path = f"/v1/inventory/{quote(key, safe='')}/{verb}"
    return await world.post(path, {"reason": "test", **body}, gateway=gateway, scope="inventory")


async def at_once(calls: Sequence[Awaitable[Answer]]) -> list[Answer]:
    """Everything in flight at the same time."""
    return list(await asyncio.gather(*calls))


def done(reply: WireReply, *, replay: bool = False, status: int | None = None) -> dict[str, Any]:
    """The body of a 2xx that says whether it was a replay."""
    assert reply.is_success, reply.text
    if status is not None:
        assert reply.status_code == status, reply.text
    assert (reply.headers.get("idempotent-replay") == "true") is replay, (reply.status_code, reply.text)
    assert reply.headers["durability"] == "broker"
    return reply.json()


def refused(reply: WireReply, status: int, code: str) -> dict[str, Any]:
    """The problem of a refusal."""
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert body["code"] == code, body
    return body


def replays(replies: Sequence[WireReply]) -> int:
    return sum(reply.headers.get("idempotent-replay") == "true" for reply in replies)


def check_real_time(answers: Sequence[tuple[float, float, int]]) -> None:
    """Invariant 7 on one key: what was answered before another was asked has the smaller seq.

    `answers` are (asked, answered, seq), times of one monotonic clock.
    """
    by_answer = sorted(answers, key=lambda answer: answer[1])
    first, highest = 0, 0
    for asked, _, seq in sorted(answers):
        while by_answer[first][1] < asked:
            highest = max(highest, by_answer[first][2])
            first += 1
        assert seq > highest, f"seq {seq} was asked after seq {highest} had been answered"


# --- looking ----------------------------------------------------------------------------------------------------------


async def balance(world: World, key: str, gateway: int = 0) -> dict[str, Any]:
    reply = await world.get(f"/v1/inventory/{quote(key, safe='')}", gateway=gateway)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def quantities(world: World, key: str) -> tuple[int, int, int, int, int]:
    """available, reserved, sold, consumed, locked."""
    body = await balance(world, key)
    return body["available"], body["reserved"], body["sold"], body["consumed"], body["locked"]


async def ledger(world: World, ref: str, tenant: str = "demo") -> list[tuple[str, int]]:
    """(inventory key, kind) of every row of an order or request number, by key and seq."""
    return await world.query(
        "SELECT inventory_key, kind FROM inventory_ledger WHERE tenant = %s AND ref = %s ORDER BY inventory_key, seq",
        tenant,
        ref,
    )


async def redis_lines(world: World, order_ids: Sequence[str]) -> dict[str, dict[str, str]]:
    """The line states of orders as the records in Redis have them; an order without a record has none."""
    epoch = (await world.shard())["epoch"]
    async with world.redis() as client:
        pipeline = client.pipeline(transaction=False)
        for order_id in order_ids:
            pipeline.hgetall(f"{{sg:0}}:{epoch}:o:demo/{order_id}")
        records = await pipeline.execute()
    found: dict[str, dict[str, str]] = {}
    for order_id, record in zip(order_ids, records, strict=True):
        packed = [msgspec.msgpack.decode(value) for name, value in record.items() if name.startswith(b"l:")]
        found[order_id] = {line[0]: LineState(line[2]).name for line in packed}
    return found


async def mysql_lines(world: World) -> dict[str, dict[str, str]]:
    """The line states of all orders as MySQL has them."""
    found: dict[str, dict[str, str]] = {}
    rows = await world.query("SELECT order_id, inventory_key, state FROM inventory_reservation WHERE tenant = 'demo'")
    for order_id, key, state in rows:
        found.setdefault(order_id, {})[key] = LineState(state).name
    return found


async def ledger_lines(world: World) -> dict[str, dict[str, str]]:
    """The line states of all orders as the last ledger rows of their lines have them."""
    found: dict[str, dict[str, str]] = {}
    rows = await world.query(
        "SELECT ref, inventory_key, line_state FROM inventory_ledger WHERE tenant = 'demo' AND line_state > 0 ORDER BY seq"
    )
    for order_id, key, state in rows:
        found.setdefault(order_id, {})[key] = LineState(state).name
    return found


async def api_lines(world: World, order_id: str, gateway: int = 0) -> dict[str, str]:
    """The line states of one order as a gateway tells them; empty for an unknown order."""
    reply = await world.get(f"/v1/reservations/{order_id}", gateway=gateway)
    if reply.status_code == 404:
        return {}
    assert reply.status_code == 200, reply.text
    return {line["inventory_key"]: line["status"] for line in reply.json()["lines"]}


async def same_everywhere(world: World, order_id: str, *expected: tuple[str, str]) -> None:
    """Every view of an order agrees: both gateways, Redis, MySQL's lines and the ledger. Waits for quiet."""
    await world.quiet()
    views = {
        "gateway 1": await api_lines(world, order_id, 0),
        "gateway 2": await api_lines(world, order_id, 1),
        "redis": (await redis_lines(world, [order_id]))[order_id],
        "mysql": (await mysql_lines(world)).get(order_id, {}),
        "ledger": (await ledger_lines(world)).get(order_id, {}),
    }
    assert all(view == dict(expected) for view in views.values()), views


async def status(world: World, gateway: int = 0) -> dict[str, Any]:
    """What `/ops/status` says about the shard."""
    reply = await world.get("/ops/status", scope="ops", gateway=gateway)
    assert reply.status_code == 200, reply.text
    return reply.json()["shards"][0]


# --- doing ------------------------------------------------------------------------------------------------------------


async def stockgate(world: World, *arguments: str) -> dict[str, Any]:
    """Run the command line as an operator would; answers its JSON and raises when it failed."""
    command = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "stockgate",
        *arguments,
        "--json",
        env={**os.environ, **world.environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await command.communicate()
    assert command.returncode == 0, f"{arguments}: {out.decode()} {error.decode()[-2000:]}"
    return json.loads(out.splitlines()[-1])


async def rebuild(world: World) -> int:
    """Close the epoch and wait for the next one, in which no key is loaded; its number."""
    before = (await world.shard())["epoch"]
    await world.query(
        "UPDATE shard SET rebuild_wanted = rebuild_wanted + 1, rebuild_reason = 'test' WHERE shard_no = 0"
    )

    async def opened() -> bool:
        return (await world.shard())["epoch"] > before

    await world.until(opened, 30.0, "a new epoch")
    await world.quiet()
    return (await world.shard())["epoch"]


@asynccontextmanager
async def redis_through_proxy(world: World, gateway: int) -> AsyncGenerator[Proxy]:
    """One gateway reaches Redis through a proxy meanwhile. It does not stand as a candidate, so it never leads."""
    role = world.gateways[gateway]
    async with proxy_to(world.servers.redis.url) as proxy:
        await role.stop()
        role.spawn(STOCKGATE_REDIS_URL=proxy.url(world.servers.redis.url), STOCKGATE_RUN_LEADER="false")
        await world.ready()
        try:
            yield proxy
        finally:
            await role.kill()
            role.spawn()
            await world.ready()


class LogQueue:
    """The shard's queue as somebody else sees it who may take messages out and put them in."""

    def __init__(self, channel: AbstractChannel, queue: AbstractQueue) -> None:
        self._channel = channel
        self._queue = queue

    async def depth(self) -> int:
        declared = await self._channel.declare_queue(log_queue(0), passive=True)
        return declared.declaration_result.message_count or 0

    async def take(self, count: int) -> list[bytes]:
        """Take the first messages out for good. Nobody else may be consuming: of several one alone is served."""
        bodies: list[bytes] = []
        async with self._queue.iterator(timeout=10) as messages:
            async for message in messages:
                bodies.append(message.body)
                await message.ack()
                if len(bodies) == count:
                    break
        return bodies

    async def put(self, *bodies: bytes) -> None:
        for body in bodies:
            message = Message(body, delivery_mode=DeliveryMode.PERSISTENT)
            await self._channel.default_exchange.publish(message, routing_key=log_queue(0))

    async def purge(self) -> None:
        await self._queue.purge()


@asynccontextmanager
async def open_queue(world: World) -> AsyncGenerator[LogQueue]:
    connection = await connect(world.servers.rabbitmq.url)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(log_queue(0), durable=True, arguments=dict(LOG_QUEUE_ARGUMENTS))
        yield LogQueue(channel, queue)


@asynccontextmanager
async def mysql_session(world: World) -> AsyncGenerator[Callable[[str], Awaitable[list[tuple[Any, ...]]]]]:
    """A foreign transaction: what it locks stays locked until the block ends, and then it is rolled back.

    The server ends it when it rests for 3 s, so it has to be kept busy.
    """
    server = world.servers.mariadb
    connection = await asyncmy.connect(
        host="127.0.0.1",
        port=server.port,
        user="admin",
        password=server.passwords.get("mariadb-admin"),
        db=world.database,
        autocommit=False,
    )

    async def ask(statement: str) -> list[tuple[Any, ...]]:
        async with connection.cursor() as cursor:
            await cursor.execute(statement)
            return list(await cursor.fetchall())

    try:
        yield ask
        await connection.rollback()
    finally:
        connection.close()


@asynccontextmanager
async def worker_away(world: World, **environment: str) -> AsyncGenerator[None]:
    """The persist worker is stopped meanwhile, and started again afterwards. Waits for quiet first."""
    await world.quiet()
    await world.worker.stop()
    try:
        yield
    finally:
        world.worker.spawn(**environment)


def read_metrics(text: str) -> dict[str, float]:
    """Values by name with labels, as they stand in Prometheus' text format."""
    values = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in values}


async def role_metrics(world: World, port: int) -> dict[str, float]:
    """The metrics of a role without an HTTP API, started with this `STOCKGATE_METRICS_PORT`."""
    wire = Wire()
    try:
        reply = await wire.call("GET", port, "/metrics", world.headers("metrics"))
    finally:
        wire.close()
    assert reply.status_code == 200, reply.text
    return read_metrics(reply.text)


async def server_errors(world: World) -> float:
    """How many 5xx all gateways have answered so far."""
    total = 0.0
    for gateway in range(len(world.gateways)):
        reply = await world.get("/metrics", scope="metrics", gateway=gateway)
        assert reply.status_code == 200, reply.text
        total += sum(
            value
            for name, value in read_metrics(reply.text).items()
            if name.startswith("stockgate_http_requests_total") and 'status="5' in name
        )
    return total
