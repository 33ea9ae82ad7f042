"""The RabbitMQ door on a real broker: what is confirmed is stored, and any doubt ends the connection and its lock."""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import AsyncGenerator
from urllib.parse import urlsplit

import pytest
from aiormq import spec
from aiormq.abc import DeliveredMessage
from pydantic import SecretStr

from kernel import amqp_topology
from kernel.amqp_door import Consumer, Publisher
from kernel.errors import StockgateError, StoreRefused, StoreUnavailable
from kernel.settings import Settings
from stockgate.servers import Servers
from tests.proxy import Proxy, proxy_to

LOG = amqp_topology.log_queue(0)
LOCK = amqp_topology.leader_lock(0)

HOLDER = """
import asyncio, sys
from kernel.amqp_door import Publisher
from kernel.settings import Settings

async def main() -> None:
    publisher = await Publisher.connect(Settings(), name="holder")
    print(await publisher.lock(sys.argv[1]), flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def settings_for(url: str, confirm_timeout_ms: int = 5_000) -> Settings:
    return Settings(
        amqp_url=SecretStr(url), amqp_heartbeat_s=1, amqp_timeout_ms=3_000, confirm_timeout_ms=confirm_timeout_ms
    )


@pytest.fixture
async def settings(servers: Servers) -> Settings:
    return settings_for(servers.rabbitmq.url)


@pytest.fixture
async def publisher(settings: Settings) -> AsyncGenerator[Publisher]:
    """A publisher, with an empty log queue."""
    publisher = await Publisher.connect(settings, name="test-publisher")
    async with publisher._link.own_channel() as channel:
        await channel.queue_delete(LOG)
    await publisher.declare_log_queue(0)
    yield publisher
    await publisher.close()


@pytest.fixture
async def proxy(servers: Servers) -> AsyncGenerator[Proxy]:
    async with proxy_to(servers.rabbitmq.url) as proxy:
        yield proxy


async def consumer_of(settings: Settings, prefetch: int = 64) -> Consumer:
    consumer = await Consumer.connect(settings, name="test-consumer", prefetch=prefetch)
    await consumer.start(LOG)
    return consumer


async def consumer_soon(settings: Settings) -> Consumer:
    """A consumer after a restart: the quorum queue needs a moment to find its leader again."""
    async with asyncio.timeout(30):
        while True:
            consumer = await Consumer.connect(settings, name="test-consumer", prefetch=64)
            try:
                await consumer.start(LOG)
                return consumer
            except StoreUnavailable:
                consumer.abandon()


async def bodies(consumer: Consumer, count: int) -> list[bytes]:
    async with asyncio.timeout(10):
        return [(await consumer.get()).body for _ in range(count)]


async def ready_messages(publisher: Publisher, wanted: int) -> int:
    """Ready messages; the broker counts returned ones a moment later."""
    ready = -1
    for _ in range(50):
        ready, _ = await publisher.queue_depth(LOG)
        if ready == wanted:
            break
        await asyncio.sleep(0.05)
    return ready


# --- publishing -------------------------------------------------------------------


async def test_messages_arrive_persistent_in_order_with_their_type(publisher: Publisher, settings: Settings) -> None:
    sent = [b"%d" % n for n in range(20)] + [os.urandom(1024 * 1024)]
    for body in sent:
        await publisher.publish(LOG, body, message_type="1")
    assert await ready_messages(publisher, 21) == 21
    consumer = await consumer_of(settings)
    async with asyncio.timeout(10):
        deliveries = [await consumer.get() for _ in sent]
    assert [delivery.body for delivery in deliveries] == sent
    assert {(delivery.message_type, delivery.redelivered) for delivery in deliveries} == {("1", False)}
    await consumer.close()

    messages = asyncio.Queue[DeliveredMessage]()
    async with publisher._link.own_channel() as channel:
        await channel.basic_consume(LOG, messages.put)
        all_properties = [(await messages.get()).header.properties for _ in sent]
    assert {(each.delivery_mode, each.content_type) for each in all_properties} == {(2, "application/msgpack")}
    assert len({each.message_id for each in all_properties}) == len(sent)


async def test_four_in_flight_keep_their_order(publisher: Publisher, settings: Settings) -> None:
    window = asyncio.Semaphore(4)

    async def publish(n: int) -> None:
        try:
            await publisher.publish(LOG, b"%d" % n, message_type="1")
        finally:
            window.release()

    async with asyncio.TaskGroup() as group:
        for n in range(300):
            await window.acquire()
            group.create_task(publish(n))
    consumer = await consumer_of(settings)
    received: list[bytes] = []
    async with asyncio.timeout(20):
        while len(received) < 300:
            delivery = await consumer.get()
            received.append(delivery.body)
            await consumer.ack(delivery)
    assert received == [b"%d" % n for n in range(300)]
    await consumer.close()


async def test_an_unroutable_message_raises_and_ends_the_publisher(publisher: Publisher) -> None:
    with pytest.raises(StoreUnavailable) as failure:
        await publisher.publish("sg.nowhere", b"lost", message_type="1")
    assert failure.value.outcome == "unknown"
    assert publisher.closed.done()
    with pytest.raises(StoreUnavailable) as failure:
        await publisher.publish(LOG, b"later", message_type="1")
    assert failure.value.outcome == "not_executed"


async def test_a_message_refused_by_a_full_queue_raises(publisher: Publisher) -> None:
    async with publisher._link.own_channel() as channel:
        await channel.queue_declare(
            "sg.full", arguments={"x-max-length": 1, "x-overflow": "reject-publish", "x-expires": 60_000}
        )
    await publisher.publish("sg.full", b"1", message_type="1")
    with pytest.raises(StoreUnavailable) as failure:
        await publisher.publish("sg.full", b"2", message_type="1")
    assert failure.value.outcome == "unknown"
    assert publisher.closed.done()


async def test_a_lost_confirm_is_unknown_and_the_message_may_be_there(
    publisher: Publisher, servers: Servers, proxy: Proxy
) -> None:
    fragile = await Publisher.connect(settings_for(proxy.url(servers.rabbitmq.url), 300), name="fragile")
    assert await fragile.lock(LOCK)
    await fragile.publish(LOG, b"1", message_type="1")
    proxy.drop_replies()
    results = await asyncio.gather(
        *(fragile.publish(LOG, body, message_type="1") for body in (b"2", b"3")), return_exceptions=True
    )
    assert [getattr(result, "outcome", None) for result in results] == ["unknown", "unknown"]
    assert fragile.closed.done()
    assert await ready_messages(publisher, 3) == 3
    assert await lock_soon(publisher)


async def test_a_confirm_that_comes_after_the_abandonment_is_not_believed(
    publisher: Publisher, settings: Settings
) -> None:
    other = await Publisher.connect(settings, name="abandoned")
    assert await other.lock(LOCK)
    publishing = [asyncio.create_task(other.publish(LOG, b"x", message_type="1")) for _ in range(4)]
    await asyncio.sleep(0)
    other.abandon()
    results = await asyncio.gather(*publishing, return_exceptions=True)
    assert all(isinstance(result, StoreUnavailable) for result in results)
    assert await lock_soon(publisher)


async def test_a_confirm_read_before_the_abandonment_but_not_told_yet_is_not_believed(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def confirm_and_abandon(*_: object, **__: object) -> spec.Basic.Ack:
        publisher.abandon()
        return spec.Basic.Ack(delivery_tag=1)

    monkeypatch.setattr(publisher._channel, "basic_publish", confirm_and_abandon)
    with pytest.raises(StoreUnavailable):
        await publisher.publish(LOG, b"x", message_type="1")


async def test_a_cancelled_publish_ends_the_publisher(publisher: Publisher, settings: Settings) -> None:
    other = await Publisher.connect(settings, name="cancelled")
    publishing = asyncio.create_task(other.publish(LOG, b"x", message_type="1"))
    await asyncio.sleep(0)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    with pytest.raises(StoreUnavailable):
        await other.publish(LOG, b"y", message_type="1")


async def test_broker_killed_with_a_publish_on_its_way(
    servers: Servers, settings: Settings, publisher: Publisher
) -> None:
    await publisher.publish(LOG, b"before", message_type="1")
    # Killed within 5 s of its declaration, a quorum queue of this broker has lost the name of its only member for ever.
    await asyncio.sleep(6)
    await servers.rabbitmq.kill(signal.SIGSTOP)
    publishing = asyncio.create_task(publisher.publish(LOG, b"during", message_type="1"))
    await asyncio.sleep(0.1)
    await servers.rabbitmq.kill(signal.SIGKILL)
    with pytest.raises(StoreUnavailable) as failure:
        await publishing
    assert failure.value.outcome == "unknown"
    with pytest.raises(StoreUnavailable) as failure:
        await Publisher.connect(settings, name="nobody")
    assert failure.value.outcome == "not_executed"
    await servers.rabbitmq.start()
    consumer = await consumer_soon(settings)
    assert (await bodies(consumer, 1))[0] == b"before"
    await consumer.close()


# --- topology ----------------------------------------------------------------------


async def test_the_log_queue_is_declared_again_but_never_differently(publisher: Publisher) -> None:
    await publisher.declare_log_queue(0)
    other = amqp_topology.log_queue(77)
    async with publisher._link.own_channel() as channel:
        await channel.queue_declare(other, durable=False, auto_delete=False, exclusive=True)
    with pytest.raises(StoreRefused):
        await publisher.declare_log_queue(77)
    # A refusal costs its own channel only.
    await publisher.publish(LOG, b"still here", message_type="1")


async def test_queue_depth(publisher: Publisher, settings: Settings) -> None:
    assert await publisher.queue_depth(LOG) == (0, 0)
    await publisher.publish(LOG, b"1", message_type="1")
    assert await ready_messages(publisher, 1) == 1
    consumer = await consumer_of(settings)
    await bodies(consumer, 1)
    assert await publisher.queue_depth(LOG) == (0, 1)
    await consumer.close()
    with pytest.raises(StoreRefused) as refusal:
        await publisher.queue_depth("sg.none")
    assert refusal.value.code == "NOT_FOUND"


async def test_a_wrong_password_is_not_shown(servers: Servers) -> None:
    port = urlsplit(servers.rabbitmq.url).port
    with pytest.raises(StoreUnavailable) as failure:
        await Publisher.connect(
            settings_for(f"amqp://stockgate:sesame-open@127.0.0.1:{port}/stockgate"), name="stranger"
        )
    assert failure.value.outcome == "not_executed"
    assert "sesame" not in "".join(traceback.format_exception(failure.value))


# --- the lock ----------------------------------------------------------------------


async def lock_soon(publisher: Publisher, limit_s: float = 10.0) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            while not await publisher.lock(LOCK):
                await asyncio.sleep(0.02)
    except TimeoutError:
        return False
    return True


async def test_the_lock_has_one_holder_and_goes_with_its_connection(publisher: Publisher, settings: Settings) -> None:
    first = await Publisher.connect(settings, name="first")
    second = await Publisher.connect(settings, name="second")
    assert await first.lock(LOCK)
    assert await first.lock(LOCK)
    assert not await second.lock(LOCK)
    # Being refused costs nothing else.
    await second.publish(LOG, b"x", message_type="1")
    await first.close()
    assert await second.lock(LOCK)
    second.abandon()
    assert await lock_soon(publisher)


async def test_a_taken_lock_is_no_cancellation_whatever_was_cancelled_before(
    publisher: Publisher, settings: Settings
) -> None:
    """Task groups of Python 3.11 may leave their count of cancellations behind."""
    holder = await Publisher.connect(settings, name="holder")
    assert await holder.lock(LOCK)
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert task.cancelling() == 1
    assert not await publisher.lock(LOCK)
    task.uncancel()
    await holder.close()


async def test_the_lock_is_free_after_sigkill_of_its_holder(publisher: Publisher, servers: Servers) -> None:
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        LOCK,
        env={**os.environ, "STOCKGATE_AMQP_URL": servers.rabbitmq.url},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"True\n"
        assert not await publisher.lock(LOCK)
    finally:
        holder.kill()
        await holder.wait()
    assert await lock_soon(publisher, 3.0)


async def test_the_lock_is_free_after_heartbeats_stop_and_the_holder_knows(
    publisher: Publisher, servers: Servers, proxy: Proxy
) -> None:
    stopped = await Publisher.connect(settings_for(proxy.url(servers.rabbitmq.url)), name="stopped")
    assert await stopped.lock(LOCK)
    proxy.blackhole()
    assert await lock_soon(publisher, 12.0)
    async with asyncio.timeout(10):
        await asyncio.wait([stopped.closed])
    with pytest.raises(StoreUnavailable):
        await stopped.publish(LOG, b"too late", message_type="1")


async def test_a_lock_whose_answer_was_not_awaited_is_not_held(settings: Settings) -> None:
    given_up = 0
    for steps in range(120):
        uncertain = await Publisher.connect(settings, name="uncertain")
        locking = asyncio.create_task(uncertain.lock(LOCK))
        for _ in range(steps):
            await asyncio.sleep(0)
        heard = locking.cancel()
        try:
            assert await locking
            assert not heard, "a cancellation was lost"
            uncertain.abandon()
        except asyncio.CancelledError:
            given_up += 1
            # Cancelled before its first step it has asked for nothing.
            assert uncertain.closed.done() or steps == 0
        other = await Publisher.connect(settings, name="other")
        assert await lock_soon(other)
        await uncertain.close()
        await other.close()
    assert given_up > 3


# --- consuming ---------------------------------------------------------------------


async def test_prefetch_bounds_what_is_delivered_and_acks_free_it(publisher: Publisher, settings: Settings) -> None:
    for n in range(10):
        await publisher.publish(LOG, b"%d" % n, message_type="1")
    consumer = await consumer_of(settings, prefetch=4)
    async with asyncio.timeout(5):
        first = [await consumer.get() for _ in range(4)]
    await asyncio.sleep(0.2)
    assert consumer.get_nowait() is None
    await consumer.ack_up_to(first[-1])
    assert await bodies(consumer, 4) == [b"4", b"5", b"6", b"7"]
    await consumer.close()
    assert await ready_messages(publisher, 6) == 6


async def test_closing_returns_what_is_not_acknowledged_in_order_and_never_cancels(
    publisher: Publisher, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(50):
        await publisher.publish(LOG, b"%d" % n, message_type="1")
    consumer = await consumer_of(settings)

    async def never(*_: object, **__: object) -> None:
        raise AssertionError("basic.cancel with open deliveries would reorder them")

    monkeypatch.setattr(consumer._channel, "basic_cancel", never)
    async with asyncio.timeout(5):
        deliveries = [await consumer.get() for _ in range(30)]
    await consumer.ack_up_to(deliveries[9])
    await consumer.close()
    with pytest.raises(StoreUnavailable):
        await consumer.get()
    with pytest.raises(StoreUnavailable):
        consumer.get_nowait()
    with pytest.raises(StoreUnavailable):
        await consumer.ack(deliveries[10])

    again = await consumer_of(settings)
    assert await bodies(again, 40) == [b"%d" % n for n in range(10, 50)]
    await again.close()


async def test_only_one_consumer_is_active_and_the_next_takes_over(publisher: Publisher, settings: Settings) -> None:
    first, second = await consumer_of(settings), await consumer_of(settings)
    for n in range(10):
        await publisher.publish(LOG, b"%d" % n, message_type="1")
    assert await bodies(first, 10) == [b"%d" % n for n in range(10)]
    assert second.get_nowait() is None
    first.abandon()
    assert await bodies(second, 10) == [b"%d" % n for n in range(10)]
    await second.close()


async def test_who_waits_hears_that_the_connection_ended(publisher: Publisher, servers: Servers, proxy: Proxy) -> None:
    for n in range(5):
        await publisher.publish(LOG, b"%d" % n, message_type="1")
    consumer = await consumer_of(settings_for(proxy.url(servers.rabbitmq.url)))
    await bodies(consumer, 3)
    await asyncio.sleep(0.1)
    proxy.cut()
    async with asyncio.timeout(3):
        await asyncio.wait([consumer.closed])
    # Two were delivered and not fetched: they will come again, to somebody else.
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await consumer.get()

    consumer = await consumer_of(settings_for(servers.rabbitmq.url))
    await bodies(consumer, 5)
    waiting = asyncio.create_task(consumer.get())
    await asyncio.sleep(0.05)
    consumer.abandon()
    with pytest.raises(StoreUnavailable):
        await waiting


async def test_a_given_up_get_loses_nothing(publisher: Publisher, settings: Settings) -> None:
    consumer = await consumer_of(settings)

    async def publish_all() -> None:
        for n in range(100):
            await publisher.publish(LOG, b"%d" % n, message_type="1")

    received: list[bytes] = []
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(publish_all())
        while len(received) < 100:
            try:
                async with asyncio.timeout(0.0008):
                    delivery = await consumer.get()
            except TimeoutError:
                continue
            received.append(delivery.body)
            await consumer.ack_up_to(delivery)
    assert received == [b"%d" % n for n in range(100)]
    await consumer.close()


async def test_a_queue_that_goes_away_ends_the_consumer(publisher: Publisher, settings: Settings) -> None:
    consumer = await consumer_of(settings)
    async with publisher._link.own_channel() as channel:
        await channel.queue_delete(LOG)
    async with asyncio.timeout(3):
        await asyncio.wait([consumer.closed])
    consumer = await Consumer.connect(settings, name="too early", prefetch=1)
    with pytest.raises(StoreRefused) as refusal:
        await consumer.start(LOG)
    assert refusal.value.code == "NOT_FOUND"
    await consumer.close()
    consumer = await Consumer.connect(settings, name="declares", prefetch=1)
    await consumer.declare_log_queue(0)
    await consumer.start(LOG)
    await consumer.close()


async def test_closing_twice_and_closing_what_is_gone(publisher: Publisher, settings: Settings, proxy: Proxy) -> None:
    other = await Publisher.connect(settings, name="twice")
    await other.close()
    await other.close()
    consumer = await consumer_of(settings)
    consumer.abandon()
    async with asyncio.timeout(5):
        await consumer.close()
    with pytest.raises(StockgateError):
        await consumer.get()
