"""No wait at a door is without a limit: every exchange stalls once, at each piece of reply in turn, and ends as an error.

The sweep ends where so many pieces were let through that the work succeeds, so no phase is left out: connecting, logging
in, the session's settings, opening channels, declaring, consuming, publishing, confirming, hanging up.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from pydantic import SecretStr

from kernel import amqp_door, amqp_topology
from kernel.amqp_door import Consumer, Publisher
from kernel.errors import StoreUnavailable
from kernel.mysql_door import Database, Statement
from kernel.redis_door import RedisDoor, open_subscription
from kernel.scripts import Script
from kernel.settings import Settings
from stockgate.servers import Servers
from tests.proxy import Proxy, proxy_to

LIMIT_MS: Final = 120
HANG_S: Final = 5.0
"""Far beyond all limits together: who comes here hangs."""
PHASES_MAX: Final = 40
ONE: Final = Statement("SELECT 1")
ECHO: Final = Script.of("echo", "#!lua\nreturn ARGV[1]")
QUEUE: Final = amqp_topology.log_queue(91)

Work = Callable[[Settings], Awaitable[None]]


def settings_for(servers: Servers, proxy: Proxy, store: str) -> Settings:
    urls = {"redis": servers.redis.url, "mysql": servers.mariadb.url, "amqp": servers.rabbitmq.url}
    limits = {
        "redis_timeout_ms": LIMIT_MS,
        "mysql_timeout_ms": LIMIT_MS,
        "amqp_timeout_ms": LIMIT_MS,
        "confirm_timeout_ms": LIMIT_MS,
    }
    return Settings.model_validate({f"{store}_url": SecretStr(proxy.url(urls[store])), **limits})


async def run_script(settings: Settings) -> None:
    door = RedisDoor.open(settings, name="stalled")
    try:
        assert await door.run(ECHO, [], ["mine"]) == b"mine"
        assert await door.read_stream("none", 0, 1, 10) == []
    finally:
        await door.close()


async def subscribe(settings: Settings) -> None:
    async with open_subscription(settings, "news"):
        pass


async def transact(settings: Settings) -> None:
    database = await Database.open(settings, name="stalled")
    try:
        async with database.transaction() as transaction:
            assert await transaction.fetch_one(ONE) == (1,)
        assert await database.fetch_all(ONE) == [(1,)]
    finally:
        await database.close()


async def publish(settings: Settings) -> None:
    publisher = await Publisher.connect(settings, name="stalled")
    try:
        assert await publisher.lock("sg.black-hole.lock")
        await publisher.declare_log_queue(91)
        await publisher.publish(QUEUE, b"body", message_type="1")
        await publisher.queue_depth(QUEUE)
    finally:
        await publisher.close()


async def consume(settings: Settings) -> None:
    consumer = await Consumer.connect(settings, name="stalled", prefetch=4)
    try:
        await consumer.declare_log_queue(91)
        await consumer.start(QUEUE)
        await consumer.ack(await consumer.get())
    finally:
        await consumer.close()


@pytest.mark.parametrize(
    ("store", "work", "phases_min"),
    [
        ("redis", run_script, 3),
        ("redis", subscribe, 2),
        ("mysql", transact, 8),
        ("amqp", publish, 8),
        ("amqp", consume, 8),
    ],
)
async def test_whatever_stalls_ends_as_an_error_within_its_limit(
    servers: Servers, store: str, work: Work, phases_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_door, "CLOSE_LIMIT_S", LIMIT_MS / 1000)
    url = {"redis": servers.redis.url, "mysql": servers.mariadb.url, "amqp": servers.rabbitmq.url}[store]
    async with proxy_to(url) as proxy:
        settings = settings_for(servers, proxy, store)
        if work is consume:
            await fill(servers)
        before = asyncio.all_tasks()
        for replies in range(PHASES_MAX):
            proxy.stall_after(replies)
            failure = await outcome(work, settings)
            proxy.cut()
            if failure is None:
                break
            assert failure.store == store.replace("amqp", "rabbitmq")
        else:
            raise AssertionError(f"it still stalls after {PHASES_MAX} pieces of reply")
        assert replies >= phases_min, "a sweep that hardly stalls shows nothing"
        proxy.restore()
        assert await outcome(work, settings) is None
        await nothing_left_behind(before)


async def outcome(work: Work, settings: Settings) -> StoreUnavailable | None:
    try:
        async with asyncio.timeout(HANG_S):
            await work(settings)
    except StoreUnavailable as failure:
        return failure
    return None


async def nothing_left_behind(before: set[asyncio.Task[object]]) -> None:
    """Wait until no task is left of what failed; the proxy's own go with its connections."""
    async with asyncio.timeout(HANG_S):
        while left := [task for task in asyncio.all_tasks() - before if "Proxy" not in repr(task.get_coro())]:
            await asyncio.wait(left, timeout=0.1)


async def fill(servers: Servers) -> None:
    """Messages enough for every attempt to be given one."""
    publisher = await Publisher.connect(Settings(amqp_url=SecretStr(servers.rabbitmq.url)), name="filling")
    await publisher.declare_log_queue(91)
    for _ in range(PHASES_MAX):
        await publisher.publish(QUEUE, b"body", message_type="1")
    await publisher.close()


@pytest.mark.parametrize("store", ["redis", "amqp"])
async def test_a_handshake_of_tls_that_stalls_ends_too(servers: Servers, store: str) -> None:
    """Who speaks TLS to a black hole: the first flight of the handshake is never answered."""
    work: Work = run_script if store == "redis" else publish
    url = {"redis": servers.redis.url, "amqp": servers.rabbitmq.url}[store]
    async with proxy_to(url) as proxy:
        proxy.blackhole()
        plain = settings_for(servers, proxy, store)
        secret: SecretStr = getattr(plain, f"{store}_url")
        secured = SecretStr(
            secret.get_secret_value().replace(f"{store}://", {"redis": "rediss", "amqp": "amqps"}[store] + "://")
        )
        failure = await outcome(work, plain.model_copy(update={f"{store}_url": secured}))
    assert failure is not None
    assert failure.outcome == "not_executed"
