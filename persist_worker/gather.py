"""Collects deliveries into batches: as many events as one transaction takes well, or what a short moment brings."""

import asyncio
from typing import NamedTuple

from inventory.sequence import Incoming, read_message
from kernel import limits
from kernel.amqp_door import Consumer, Delivery


class Received(NamedTuple):
    """A delivery and what its body says. It is acknowledged on the consumer it came from."""

    delivery: Delivery
    incoming: Incoming


class Gather:
    """Batches from one consumer, in delivery order. A message is never split: one alone may exceed the bound."""

    def __init__(
        self,
        consumer: Consumer,
        shard: int,
        *,
        events_max: int = limits.WORKER_BATCH_EVENTS_MAX,
        gather_ms: int = limits.WORKER_GATHER_MS,
    ) -> None:
        self._consumer = consumer
        self._shard = shard
        self._events_max = events_max
        self._gather_s = gather_ms / 1000
        self._next: Received | None = None

    async def batch(self, wait_s: float) -> list[Received]:
        """Wait at most `wait_s` for a first message, then collect; empty if none came.

        Raises StoreUnavailable when the connection has ended: what was collected is delivered again.
        """
        first = self._next or await self._receive(wait_s)
        self._next = None
        if first is None:
            return []
        batch, events = [first], first.incoming.events
        deadline = asyncio.get_running_loop().time() + self._gather_s
        # A TERM or CLOSE has no entries, and somebody waits until it is obeyed.
        while events < self._events_max and batch[-1].incoming.entries:
            received = await self._receive(deadline - asyncio.get_running_loop().time())
            if received is None:
                break
            if events + received.incoming.events > self._events_max:
                self._next = received
                break
            batch.append(received)
            events += received.incoming.events
        return batch

    async def _receive(self, wait_s: float) -> Received | None:
        delivery = self._consumer.get_nowait()
        if delivery is None and wait_s > 0:
            try:
                async with asyncio.timeout(wait_s):
                    delivery = await self._consumer.get()
            except TimeoutError:
                return None
        return None if delivery is None else Received(delivery, read_message(delivery.body, self._shard))
