"""RabbitMQ out of memory: it reads nothing from who publishes. Sellers hear 503, nothing hangs, and it heals by itself."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kernel.amqp_door import BLOCKED, Consumer, Publisher
from kernel.amqp_topology import log_queue
from kernel.errors import StoreUnavailable
from kernel.settings import Settings
from stockgate.servers import Servers
from tests.integration.gateway_world import GatewayWorld, held_open

LIMIT_S = 60.0
QUEUE = log_queue(0)


@asynccontextmanager
async def memory_alarm(servers: Servers) -> AsyncGenerator[None]:
    await servers.rabbitmq.ctl("set_vm_memory_high_watermark", "0.00001")
    try:
        # The broker compares once a second.
        async with asyncio.timeout(LIMIT_S):
            while "memory" not in await servers.rabbitmq.ctl("eval", "rabbit_alarm:get_alarms()."):
                await asyncio.sleep(0.05)
        yield
    finally:
        await servers.rabbitmq.ctl("set_vm_memory_high_watermark", "0.4")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.timeout(300)
async def test_a_blocked_publisher_says_why_and_a_consumer_goes_on(servers: Servers) -> None:
    settings = Settings.model_validate({"amqp_url": servers.rabbitmq.url, "confirm_timeout_ms": 3_000})
    publisher = await Publisher.connect(settings, name="blocked")
    await publisher.declare_log_queue(0)
    consumer = await Consumer.connect(settings, name="reading", prefetch=4)
    await publisher.publish(QUEUE, b"before", message_type="1")
    assert not publisher.blocked
    async with memory_alarm(servers):
        # The broker says so in answer to the first message that comes during the alarm.
        publishing = asyncio.create_task(publisher.publish(QUEUE, b"during", message_type="1"))
        await until(lambda: publisher.blocked or publishing.done())
        with pytest.raises(StoreUnavailable, match=BLOCKED) as failure:
            await publishing
        assert failure.value.outcome == "unknown"
        assert publisher.closed.done()
        assert not publisher.blocked, "of a connection that has ended nothing is said"
        # What is there can be read and acknowledged: consuming has a connection of its own.
        await consumer.start(QUEUE)
        async with asyncio.timeout(LIMIT_S):
            await consumer.ack(await consumer.get())
        await consumer.close()
    healed = await Publisher.connect(settings, name="healed")
    await healed.publish(QUEUE, b"after", message_type="1")
    await healed.close()


@pytest.mark.timeout(300)
async def test_sellers_hear_503_while_the_broker_is_blocked_and_it_heals(servers: Servers, tmp_path: Path) -> None:
    changed = {"answer_deadline_ms": 1_000, "confirm_timeout_ms": 3_000, "unconfirmed_bytes_reserve_max": 2_048}
    async with held_open(servers, tmp_path, **changed) as world:
        leader = world.state["leader"]
        first = world.order(world.key)
        async with memory_alarm(servers):
            # Decided, and not confirmed: nobody is told that it holds.
            reply = await world.call("POST", "/v1/reservations", first)
            assert (reply.status, reply.json["outcome"]) == (503, "unknown"), reply.body
            await until(lambda: BLOCKED in leader.failure)
            # Above the bound of what is decided and not confirmed, nothing more is taken; what frees stock still is.
            await until_refused_up_front(world)
            assert (await world.call("GET", "/health/live")).status == 200
        async with asyncio.timeout(LIMIT_S):
            while (await world.call("POST", "/v1/reservations", first)).status not in {200, 201}:
                await asyncio.sleep(0.1)
        await world.check_audit()


async def until_refused_up_front(world: GatewayWorld) -> None:
    """Reserve until one is refused without having been decided."""
    for _ in range(20):
        replies = await asyncio.gather(
            *(world.call("POST", "/v1/reservations", world.order(world.key)) for _ in range(5))
        )
        assert {reply.status for reply in replies} == {503}
        if any(reply.json["outcome"] == "not_executed" for reply in replies):
            return
    raise AssertionError("what is decided and not confirmed has no bound")
