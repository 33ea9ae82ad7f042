"""The relay: reads a shard's log in order, publishes it as it is, and names what the broker has confirmed.

Reading, publishing and naming run side by side. An entry is published only if it continues the chain from where this
leader took over, and named only when it and every entry before it is confirmed on the connection that holds the lock.
Whatever is not exactly that is a doubt, and a doubt ends the leadership.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from inventory.events import (
    WIRE_VERSION,
    LogMessage,
    MessageType,
    Naming,
    chain,
    encode_message,
    encode_naming,
)
from inventory.head import ChainBroken, Head, LeadershipLost, Position
from kernel import failpoints, limits
from kernel.amqp_door import Publisher
from kernel.amqp_topology import log_queue
from kernel.errors import StoreUnavailable
from kernel.redis_door import RedisDoor

READ_BLOCK_MS: Final = 250
"""How long a read waits for the next entry; a rewind is heard between two reads."""
READ_BYTES_WANTED: Final = 4 * limits.RELAY_MESSAGE_BYTES_MAX
"""A read asks for about this much, so that checking what it brings never holds up the event loop for long."""
REDIS_RETRY_S: Final = 0.05
AFTER_PUBLISH_S: Final = 0.0005
"""When a message has been written, but its confirm cannot be here yet: the place of a failpoint."""


Tell = Callable[[Naming], None]
"""Hears of entries as soon as the broker has confirmed them and every entry before them, in this process alone."""


class Entry(NamedTuple):
    """One entry of the log: number, digest, payload as the script packed it."""

    m: int
    digest: str
    payload: bytes


def follow(position: Position, read: Sequence[tuple[int, dict[bytes, bytes]]]) -> list[Entry]:
    """Take what was read after `position` if it continues it without a hole; raises ChainBroken."""
    entries: list[Entry] = []
    m, digest = position
    for number, fields in read:
        payload = fields[b"e"]
        digest = chain(digest, payload)
        m += 1
        if number != m or fields[b"d"] != digest.encode():
            raise ChainBroken(f"entry {number} does not follow entry {m - 1}")
        entries.append(Entry(m, digest, payload))
    return entries


def pack(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Divide entries, in order, into messages of at most RELAY_MESSAGE_BYTES_MAX of payload and at least one entry."""
    messages: list[list[Entry]] = []
    room = 0
    for entry in entries:
        if not messages or room < len(entry.payload):
            messages.append([])
            room = limits.RELAY_MESSAGE_BYTES_MAX
        messages[-1].append(entry)
        room -= len(entry.payload)
    return messages


class Relay:
    """The relay of one leadership in one epoch; runs until it is cancelled or raises.

    Raises LeadershipLost, or what the publisher raises (StoreUnavailable of rabbitmq): both end the leadership. A Redis
    that is away is waited for; whoever watches over the head decides how long.
    """

    def __init__(
        self, *, publisher: Publisher, reader: RedisDoor, head: Head, start: Position, named_m: int, tell: Tell
    ) -> None:
        self._publisher = publisher
        self._tell = tell
        self._reader = reader
        self._head = head
        self._queue = log_queue(head.keys.shard)
        self._position = start
        self._rewind_to: Position | None = None
        self._entry_bytes = 256.0
        self._slots = asyncio.Semaphore(limits.RELAY_IN_FLIGHT_MAX)
        self._in_flight: asyncio.Queue[tuple[asyncio.Task[None], list[Entry]]] = asyncio.Queue()
        self._unnamed: list[Entry] = []
        self._to_name = asyncio.Event()
        self._progress = asyncio.Event()
        self.read = start
        """The last entry ever read: what Redis' log must still hold."""
        self.named_m = named_m
        """The confirmed mark as this leader knows it."""
        self._named = start if named_m == start.m else None
        self._end_m: int | None = None

    def rewind(self, position: Position) -> None:
        """Publish again from the entry after `position`, which MySQL has."""
        self._rewind_to = position

    def end_at(self, m: int) -> None:
        """Entry m is the epoch's last: CLOSE follows it. What a Redis that forgot its fence adds is a broken chain.

        A message behind CLOSE would be confirmed like any other, and would have no effect.
        """
        self._end_m = m
        self._check_end()

    def _check_end(self) -> None:
        if self._end_m is not None and self.read.m > self._end_m:
            raise ChainBroken(f"entry {self.read.m} was made after the epoch had ended with entry {self._end_m}")

    async def caught_up(self, m: int) -> None:
        """Wait until entry m is confirmed and named."""
        while self.named_m < m:
            await self._progress.wait()

    async def run(self) -> None:
        """Relay until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_and_publish(group), name="relay read")
            group.create_task(self._confirm_in_order(), name="relay confirm")
            group.create_task(self._name(), name="relay name")

    async def _read_and_publish(self, group: asyncio.TaskGroup) -> None:
        while True:
            # With a free place first, and the read second, what comes while all are in flight becomes one message.
            await self._slots.acquire()
            messages = pack(await self._read())
            if not messages:
                self._slots.release()
                continue
            self._publish(group, messages[0])
            for message in messages[1:]:
                await self._slots.acquire()
                self._publish(group, message)

    async def _read(self) -> list[Entry]:
        """The next entries, none when there was nothing yet; raises ChainBroken."""
        if self._rewind_to is not None:
            self._position, self._rewind_to = self._rewind_to, None
        count = max(1, min(limits.RELAY_READ_ENTRIES_MAX, int(READ_BYTES_WANTED / self._entry_bytes)))
        try:
            read = await self._reader.read_stream(self._head.keys.log, self._position.m, count, READ_BLOCK_MS)
        except StoreUnavailable:
            await asyncio.sleep(REDIS_RETRY_S)
            return []
        if not read or self._rewind_to is not None:
            return []
        entries = follow(self._position, read)
        self._check_read_again(entries)
        last = entries[-1]
        self._position = Position(last.m, last.digest)
        if last.m > self.read.m:
            self.read = self._position
            self._check_end()
        self._entry_bytes += (sum(len(entry.payload) for entry in entries) / len(entries) - self._entry_bytes) / 4
        # A reconnected reader may talk to another Redis: its entries chain, but whose term is in its head?
        while not await self._checked():
            await asyncio.sleep(REDIS_RETRY_S)
        return entries

    async def _checked(self) -> bool:
        """Whether the head could be checked since the reader's last connect; raises ChainBroken."""
        try:
            await self._head.check_after_reconnect(self._reader, self.read)
        except StoreUnavailable:
            return False
        return True

    def _check_read_again(self, entries: list[Entry]) -> None:
        """After a rewind the log must lead to the very entry that was read before."""
        place = self.read.m - entries[0].m
        if 0 <= place < len(entries) and entries[place].digest != self.read.digest:
            raise ChainBroken(f"entry {self.read.m} is another one than before")

    def _publish(self, group: asyncio.TaskGroup, entries: list[Entry]) -> None:
        failpoints.hit("leader.before_publish")
        message = LogMessage(
            WIRE_VERSION,
            MessageType.ENTRIES,
            self._head.keys.shard,
            self._head.keys.epoch,
            self._head.term,
            first_m=entries[0].m,
            entries=[(entry.digest, entry.payload) for entry in entries],
        )
        body = encode_message(message)
        task = group.create_task(self._publisher.publish(self._queue, body, message_type="ENTRIES"))
        self._in_flight.put_nowait((task, entries))
        asyncio.get_running_loop().call_later(AFTER_PUBLISH_S, failpoints.hit, "leader.after_publish")

    async def _confirm_in_order(self) -> None:
        while True:
            task, entries = await self._in_flight.get()
            await task
            failpoints.hit("leader.after_confirm")
            self._slots.release()
            confirmed = [entry for entry in entries if entry.m > self.named_m]
            if confirmed:
                self._tell(Naming(self._head.keys.epoch, [(entry.m, entry.digest) for entry in confirmed]))
                self._unnamed += confirmed
                self._to_name.set()

    async def _name(self) -> None:
        """Move the mark to the last confirmed entry and name all since the one before, in one step."""
        while True:
            await self._to_name.wait()
            self._to_name.clear()
            entries, self._unnamed = self._unnamed, []
            # After a rewind an entry may be confirmed twice before it is named.
            entries = [entry for entry in entries if entry.m > self.named_m]
            if entries:
                await self._name_until_done([(entry.m, entry.digest) for entry in entries])

    async def _name_until_done(self, entries: list[tuple[int, str]]) -> None:
        last = Position(*max(entries))
        payload = encode_naming(Naming(self._head.keys.epoch, entries))
        failpoints.hit("leader.before_naming")
        while not await self._confirmed(last, payload):
            await asyncio.sleep(REDIS_RETRY_S)
        self.named_m, self._named = last.m, last
        self._progress.set()
        self._progress.clear()

    async def name_again(self) -> None:
        """Move the mark once more to what was named last: Redis has forgotten it. Raises as `Head.confirm`."""
        if self._named is None:
            raise LeadershipLost(f"Redis has forgotten that entry {self.named_m} is confirmed")
        await self._head.confirm(self._named, encode_naming(Naming(self._head.keys.epoch, [self._named])))

    async def _confirmed(self, last: Position, payload: bytes) -> bool:
        """Whether Redis took the mark; a repeat does no harm. Raises ChainBroken."""
        try:
            await self._head.confirm(last, payload)
        except StoreUnavailable:
            return False
        return True
