"""The only door to RabbitMQ: a publisher that knows what is confirmed, and a consumer that only collects.

Both rest on plain connections: a connection that ends, ends for good, and whoever needs another makes one. Automatic
reconnection would hide exactly what a leader must notice, because its lock dies with its connection.
"""

import asyncio
import itertools
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, cast

import aiormq
from aiormq import exceptions as driver
from aiormq import spec
from aiormq.abc import DeliveredMessage
from aiormq.channel import Channel
from aiormq.connection import TCPTransportFactory, TLSTransportFactory, TransportFactory
from yarl import URL

from kernel import amqp_topology
from kernel.errors import StoreOutcome, StoreRefused, StoreUnavailable
from kernel.metrics import Metrics
from kernel.settings import Settings
from kernel.tls import client_context, refusal

CLOSE_LIMIT_S: Final = 2.0
BLOCKED: Final = "the broker has blocked publishing: it runs out of memory or disk"
ABANDONED: Final = "abandoned"
"""Why a connection ended that nobody wants any more: not a failure."""
PERSISTENT: Final = 2
"""The delivery mode of every message."""

_REFUSED: Final[dict[type[driver.AMQPError], str]] = {
    driver.ChannelNotFoundEntity: "NOT_FOUND",
    driver.ChannelAccessRefused: "ACCESS_REFUSED",
    driver.ChannelLockedResource: "RESOURCE_LOCKED",
    driver.ChannelPreconditionFailed: "PRECONDITION_FAILED",
}
_FAILURES: Final = (driver.AMQPError, OSError, RuntimeError, EOFError)
"""What the driver raises when a connection is of no use any more; RuntimeError is its word for `closed already`."""


QueueState = Literal["right", "wrong", "missing", "not_told"]
"""`wrong`: there with other arguments. `not_told`: this account may not ask."""


class _PlainConnection(aiormq.Connection):
    # (3 + 1) * 2 = 8 s without any frame at a heartbeat of 3 s; the driver's own three would be 12 s.
    HEARTBEAT_GRACE_MULTIPLIER = 2


class _Transport(TransportFactory):
    """Makes the transport as the driver would, and keeps it, so that it can be cut at once."""

    def __init__(self, *, tls: bool) -> None:
        self._factory = TLSTransportFactory() if tls else TCPTransportFactory()
        self._writer: asyncio.StreamWriter | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, self._writer = await self._factory.create(url, **kwargs)
        return reader, self._writer

    @property
    def local_address(self) -> tuple[Any, ...]:
        """This end of the connection: no two connections share it."""
        return () if self._writer is None else tuple(self._writer.get_extra_info("sockname"))

    def cut(self) -> None:
        """Drop the connection without a word; what was not read by now is never read."""
        if self._writer is not None:
            self._writer.transport.abort()


class _Link:
    """One connection, and the future that tells when and why it ended."""

    def __init__(
        self, connection: aiormq.Connection, transport: _Transport, timeout_s: float, metrics: Metrics | None
    ) -> None:
        self.connection = connection
        self._metrics = metrics
        self.timeout_s = timeout_s
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._transport = transport
        self.local_address = transport.local_address
        self.watch(connection)

    @classmethod
    async def connect(cls, settings: Settings, name: str, metrics: Metrics | None) -> Self:
        """Connect and log in; raises StoreUnavailable `not_executed`."""
        url = URL(settings.amqp_url.get_secret_value()).update_query(heartbeat=str(settings.amqp_heartbeat_s))
        if metrics is not None:
            metrics.begin_failures("rabbitmq", (*_REFUSED.values(), "CONNECTION_LOST"))
        transport = _Transport(tls=url.scheme == "amqps")
        timeout_s = settings.amqp_timeout_ms / 1000
        try:
            with _translated("not_executed"):
                connection = _PlainConnection(
                    url,
                    transport_factory=transport,
                    client_properties={"connection_name": name},
                    # Our own context: the driver's would be made from words in the address.
                    context=client_context(settings) if url.scheme == "amqps" else None,
                )
                connecting = cast("Coroutine[Any, Any, Any]", connection.connect())  # pyright: ignore[reportUnknownMemberType]
                await _limited(connecting, timeout_s, transport.cut)
        except BaseException as failure:
            transport.cut()
            if metrics is not None and isinstance(failure, StoreUnavailable):
                metrics.count_failure("rabbitmq", failure)
            raise
        if metrics is not None:
            metrics.store_connections_total.labels("rabbitmq").inc()
        return cls(connection, transport, timeout_s, metrics)

    def watch(self, part: aiormq.Connection | Channel) -> None:
        """The link ends where this part of it ends."""
        cast("asyncio.Future[Any]", part.closing).add_done_callback(self._part_closed)

    def _part_closed(self, closing: asyncio.Future[Any]) -> None:
        reason = "cancelled" if closing.cancelled() else repr(closing.exception())
        # Closing it here closes its parts too, and must not be cut short by them.
        if not self.closed.done():
            self.cut(reason)

    def cut(self, reason: str) -> None:
        """End the link at once: no frame of it is read or believed any more."""
        if not self.closed.done():
            self.closed.set_result(reason)
            if self._metrics is not None and reason != ABANDONED:
                self._metrics.store_errors_total.labels("rabbitmq", "CONNECTION_LOST").inc()
        self._transport.cut()

    @property
    def blocked(self) -> bool:
        """Whether the broker has said that it reads nothing from this connection now: it runs out of memory or disk."""
        # The driver tells only by what would have to wait.
        waiting = self.connection.ready()
        try:
            waiting.send(None)
        except StopIteration:
            return False
        finally:
            waiting.close()
        return True

    @asynccontextmanager
    async def limited(self) -> AsyncGenerator[None]:
        """Exchanges within one limit. Who is not answered in time cuts the link, and then is cancelled: what the driver
        does to clean up must not wait for the same silence.
        """
        watchdog = asyncio.get_running_loop().call_later(
            self.timeout_s, self.cut, f"no answer within {self.timeout_s:g} s"
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                yield
        finally:
            watchdog.cancel()

    async def channel(self, *, confirms: bool) -> Channel:
        """Open a channel; raises as the driver does."""
        async with self.limited():
            return cast("Channel", await self.connection.channel(publisher_confirms=confirms))

    @asynccontextmanager
    async def own_channel(self) -> AsyncGenerator[Channel]:
        """A channel for one request that may fail: a refusal closes the channel it was made on, and no other."""
        with _translated("not_executed"):
            async with self.limited():
                channel = cast("Channel", await self.connection.channel(publisher_confirms=False))
                # Where the request fails the channel is closed already: by the refusal, or by the driver giving it up.
                yield channel
                await channel.close()

    async def declare_log_queue(self, shard: int) -> None:
        """Make the shard's quorum queue if it is not there; raises StoreRefused if it is there with other arguments."""
        async with self.own_channel() as channel:
            await channel.queue_declare(
                amqp_topology.log_queue(shard), durable=True, arguments=dict(amqp_topology.LOG_QUEUE_ARGUMENTS)
            )

    async def look_at_log_queue(self, shard: int) -> tuple[QueueState, str]:
        """How the shard's queue stands, and the broker's words where it is not as it must be. Makes nothing new."""
        try:
            async with self.own_channel() as channel:
                await channel.queue_declare(amqp_topology.log_queue(shard), passive=True)
            # A passive declaration compares nothing. This one does, and nothing is made where the queue is there.
            await self.declare_log_queue(shard)
        except StoreRefused as refused:
            states: dict[str, QueueState] = {"NOT_FOUND": "missing", "ACCESS_REFUSED": "not_told"}
            return states.get(refused.code, "wrong"), refused.detail
        return "right", ""

    async def close(self, channel: Channel) -> None:
        """Close channel and connection, for at most `CLOSE_LIMIT_S`; afterwards the transport is gone in any case."""
        if not self.closed.done():
            self.closed.set_result("closed here")

        async def say_goodbye() -> None:
            await channel.close()
            await self.connection.close()

        try:
            with suppress(TimeoutError, *_FAILURES):
                await _limited(say_goodbye(), CLOSE_LIMIT_S, self._transport.cut)
        finally:
            self._transport.cut()


async def _limited(work: Coroutine[Any, Any, None], limit_s: float, cut: Callable[[], None]) -> None:
    """Let the driver work within a limit. At the limit, or when cancelled, the transport is cut first: only then does
    what the driver does to clean up (a farewell, the end of a TLS session) wait for nobody. Raises TimeoutError.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task], timeout=limit_s)
    finally:
        late = not task.done()
        if late:
            cut()
            task.cancel()
            # Whatever it ends with is of no interest any more.
            await asyncio.gather(task, return_exceptions=True)
    if late:
        raise TimeoutError
    task.result()


@contextmanager
def _translated(outcome: StoreOutcome) -> Generator[None]:
    """Translate what the driver raises; `outcome` is what is true of anything but a refusal.

    A cancellation is raised even where the driver has lost it: it waits with `wait_for`, which in Python 3.11 returns what
    came at the same moment instead.
    """
    task = asyncio.current_task()
    # Not always 0: in Python 3.11 a task group whose child fails while it is left does not take its own count back.
    cancelled_before = task.cancelling() if task else 0
    try:
        yield
    except TimeoutError as late:
        raise StoreUnavailable("rabbitmq", outcome, "no answer in time") from late
    except _FAILURES as failure:
        if task is not None and task.cancelling() > cancelled_before:
            # The driver raises the end of a connection in place of a cancellation that comes with it. Who is asked to
            # end must not take it for a failure and begin anew.
            raise asyncio.CancelledError from failure
        if outcome == "not_executed" and (why := refusal(failure)) is not None:
            raise StoreRefused("rabbitmq", "TLS_FAILED", why) from failure
        if code := _REFUSED.get(type(failure)):  # pyright: ignore[reportArgumentType]
            raise StoreRefused("rabbitmq", code, str(failure)) from failure
        raise StoreUnavailable("rabbitmq", outcome, repr(failure)) from failure
    else:
        if task is not None and task.cancelling() > cancelled_before:
            raise asyncio.CancelledError


class Publisher:
    """Publishes on one connection that may also hold a lock. Any doubt about a message ends the connection.

    After a return, a refusal, a late confirm or a cancelled publish nothing more is sent or believed: order is all that
    counts here, and a later message must not be confirmed where an earlier one is in doubt.
    """

    def __init__(self, link: _Link, channel: Channel, confirm_timeout_s: float) -> None:
        self._link = link
        self._channel = channel
        self._confirm_timeout_s = confirm_timeout_s
        # Returned messages are matched by message_id: no two may bear the same.
        self._message_id_prefix = uuid.uuid4().hex
        self._message_numbers = itertools.count(1)
        self.closed: asyncio.Future[str] = link.closed
        """Done, with the reason, as soon as the connection has ended."""

    @classmethod
    async def connect(cls, settings: Settings, *, name: str, metrics: Metrics | None = None) -> Self:
        """Connect and open a channel with confirms; raises StoreUnavailable `not_executed`."""
        link = await _Link.connect(settings, name, metrics)
        try:
            with _translated("not_executed"):
                channel = await link.channel(confirms=True)
        except BaseException:
            link.cut("no channel")
            raise
        link.watch(channel)
        return cls(link, channel, settings.confirm_timeout_ms / 1000)

    async def declare_log_queue(self, shard: int) -> None:
        """Make the shard's quorum queue if it is not there; StoreRefused if it is there with other arguments."""
        await self._link.declare_log_queue(shard)

    async def lock(self, queue_name: str) -> bool:
        """Take a lock that lives exactly as long as this connection: an exclusive queue. False: another has it."""
        try:
            async with self._link.own_channel() as channel:
                await channel.queue_declare(queue_name, exclusive=True, arguments={"x-queue-type": "classic"})
        except StoreRefused as refused:
            if refused.code == "RESOURCE_LOCKED":
                return False
            raise
        except BaseException:
            # The broker may have given it all the same: nobody may hold it without knowing.
            self._link.cut("lock: no answer")
            raise
        return True

    async def publish(self, queue_name: str, body: bytes, *, message_type: str) -> None:
        """Publish one persistent message straight to a queue, and return when the broker has confirmed it.

        Calls that overlap are sent in the order in which they began. Raises StoreUnavailable `unknown` on everything but a
        confirm, and then the publisher is of no use any more.
        """
        properties = spec.Basic.Properties(
            content_type="application/msgpack",
            delivery_mode=PERSISTENT,
            message_id=f"{self._message_id_prefix}-{next(self._message_numbers)}",
            message_type=message_type,
        )
        try:
            if self.closed.done():
                raise StoreUnavailable("rabbitmq", "not_executed", f"connection closed: {self.closed.result()}")
            with _translated("unknown"):
                try:
                    async with asyncio.timeout(self._confirm_timeout_s):
                        answer = await self._channel.basic_publish(
                            body, routing_key=queue_name, properties=properties, mandatory=True, wait=False
                        )
                except TimeoutError:
                    if self.blocked:
                        raise StoreUnavailable("rabbitmq", "unknown", BLOCKED) from None
                    raise
            if not isinstance(answer, spec.Basic.Ack) or self.closed.done():
                raise StoreUnavailable("rabbitmq", "unknown", f"answered by {type(answer).__name__}, not believed")
        except BaseException as failure:
            self._link.cut(f"publish: {failure!r}")
            raise

    @property
    def blocked(self) -> bool:
        """Whether the broker has stopped reading what is published here (it runs out of memory or disk)."""
        return not self.closed.done() and self._link.blocked

    async def lock_taken(self, queue_name: str) -> bool:
        """Whether anybody else holds this lock now; asks, and takes nothing."""
        try:
            async with self._link.own_channel() as channel:
                await channel.queue_declare(queue_name, passive=True)
        except StoreRefused as refused:
            if refused.code in {"NOT_FOUND", "RESOURCE_LOCKED"}:
                return refused.code == "RESOURCE_LOCKED"
            raise
        return False

    async def queue_depth(self, queue_name: str) -> tuple[int, int]:
        """Ready messages and consumers of a queue; raises StoreRefused `NOT_FOUND`."""
        async with self._link.own_channel() as channel:
            answer = await channel.queue_declare(queue_name, passive=True)
        return answer.message_count or 0, answer.consumer_count or 0

    def abandon(self) -> None:
        """Drop the connection at once, and the lock with it: nothing more is heard, whatever is still under way."""
        self._link.cut(ABANDONED)

    async def close(self) -> None:
        """Close the connection; the lock is free afterwards."""
        await self._link.close(self._channel)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message that was delivered and is to be acknowledged on the same consumer."""

    body: bytes
    tag: int
    message_type: str
    redelivered: bool
    """A hint only: a message may be there twice without it."""


class Consumer:
    """Collects what one queue delivers on a connection of its own. The callback only enqueues; the rest is pulled.

    When the connection ends, deliveries not yet fetched are dropped: the broker delivers them again.
    """

    def __init__(self, link: _Link, channel: Channel) -> None:
        self._link = link
        self._channel = channel
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self.closed: asyncio.Future[str] = link.closed
        """Done, with the reason, as soon as the connection has ended."""
        link.closed.add_done_callback(lambda _: self._deliveries.put_nowait(None))

    @classmethod
    async def connect(cls, settings: Settings, *, name: str, prefetch: int, metrics: Metrics | None = None) -> Self:
        """Connect with at most `prefetch` unacknowledged messages; raises StoreUnavailable `not_executed`."""
        link = await _Link.connect(settings, name, metrics)
        try:
            with _translated("not_executed"):
                channel = await link.channel(confirms=False)
                async with link.limited():
                    await channel.basic_qos(prefetch_count=prefetch)
        except BaseException:
            link.cut("no channel")
            raise
        link.watch(channel)
        channel.on_consumer_cancel_callbacks.add(lambda _: link.cut("the broker cancelled the consumer"))
        return cls(link, channel)

    async def declare_log_queue(self, shard: int) -> None:
        """Make the shard's quorum queue if it is not there; StoreRefused if it is there with other arguments."""
        await self._link.declare_log_queue(shard)

    async def start(self, queue_name: str) -> None:
        """Consume a queue with manual acknowledgement; raises StoreRefused `NOT_FOUND`, and then it is closed."""
        with _translated("not_executed"):
            async with self._link.limited():
                await self._channel.basic_consume(queue_name, self._enqueue, no_ack=False)

    async def _enqueue(self, message: DeliveredMessage) -> None:
        delivery = message.delivery
        if isinstance(delivery, spec.Basic.Deliver) and delivery.delivery_tag is not None:
            message_type = message.header.properties.message_type or ""
            self._deliveries.put_nowait(
                Delivery(message.body, delivery.delivery_tag, message_type, bool(delivery.redelivered))
            )

    async def get(self) -> Delivery:
        """Wait for the next delivery; raises StoreUnavailable once the connection has ended. Safe to cancel."""
        delivery = None if self.closed.done() else await self._deliveries.get()
        return self._believed(delivery)

    def get_nowait(self) -> Delivery | None:
        """The next delivery if one is there; raises as `get`."""
        if self._deliveries.empty() and not self.closed.done():
            return None
        return self._believed(None if self.closed.done() else self._deliveries.get_nowait())

    def _believed(self, delivery: Delivery | None) -> Delivery:
        if delivery is None or self.closed.done():
            raise StoreUnavailable("rabbitmq", "not_executed", f"connection closed: {self.closed.result()}")
        return delivery

    async def ack(self, delivery: Delivery) -> None:
        """Acknowledge one delivery. Written, not answered: it may be delivered again all the same."""
        await self._ack(delivery, multiple=False)

    async def ack_up_to(self, delivery: Delivery) -> None:
        """Acknowledge this delivery and all before it."""
        await self._ack(delivery, multiple=True)

    async def _ack(self, delivery: Delivery, *, multiple: bool) -> None:
        with _translated("unknown"):
            async with self._link.limited():
                await self._channel.basic_ack(delivery.tag, multiple=multiple, wait=False)

    async def close(self) -> None:
        """Close the channel, which returns what is not acknowledged in its order; never by `basic.cancel`."""
        await self._link.close(self._channel)

    def abandon(self) -> None:
        """Drop the connection at once."""
        self._link.cut(ABANDONED)


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What the broker says about itself, and how this process speaks to it."""

    version: str
    heartbeat_s: int
    """As agreed on; 0 = none."""
    delivery_mode: int
    separate_connections: bool
    """Whether publishing and consuming have a connection each."""
    queue: QueueState
    queue_detail: str


async def read_broker_facts(settings: Settings, shard: int, *, name: str) -> BrokerFacts:
    """Connect as a publisher and as a consumer would, look at the shard's queue, and hang up.

    Nothing is published or consumed. Raises StoreUnavailable `not_executed`.
    """
    publisher = await Publisher.connect(settings, name=name)
    try:
        consumer = await Consumer.connect(settings, name=name, prefetch=1)
        try:
            link = publisher._link  # noqa: SLF001 - one file, two halves of one thing
            state, detail = await link.look_at_log_queue(shard)
            version = link.connection.server_properties.get("version", "")
            return BrokerFacts(
                version=version.decode() if isinstance(version, bytes) else str(version),
                heartbeat_s=link.connection.connection_tune.heartbeat,
                delivery_mode=PERSISTENT,
                separate_connections=link.local_address != consumer._link.local_address,  # noqa: SLF001 - as above
                queue=state,
                queue_detail=detail,
            )
        finally:
            await consumer.close()
    finally:
        await publisher.close()
