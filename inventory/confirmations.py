"""Which entries the leader has named: what answers wait for.

The leader publishes every confirmed entry, number and digest, on the shard's channel. One waiter stands for a whole call,
however many requests wait for it. A naming counts for an entry only with that entry's digest: a bare higher number proves
nothing, because a Redis that came back with older data hands out the same numbers again. Whoever missed a naming asks the
head, which compares the digest in the same way.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

import lua
from inventory.events import Naming, decode_naming
from inventory.head import Position
from kernel import redis_keys
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.errors import ScriptFailed, StockgateError, StoreUnavailable
from kernel.redis_door import RedisDoor, open_subscription
from kernel.redis_keys import EpochKeys
from kernel.settings import Settings

NEWS_MISSING_S: Final = 0.1
"""So long after the last news the head is asked."""
RESUBSCRIBE_S: Final = 0.1
"""Between two attempts to subscribe."""
NAMED_KEPT: Final = 8_192
"""Named entries remembered: a naming often comes before the reply of the call that made the entry is read."""

NONE_KNOWN: Final = Position(0, "")
"""Knowing of no entry, which every log holds."""

Tell = Callable[[bool | None], None]
"""True: confirmed. False: another entry stands in its place, or nobody can say any more. None: the deadline passed."""


class _Waiter:
    __slots__ = ("deadline", "digest", "epoch", "m", "tell")

    def __init__(self, epoch: int, m: int, digest: str, deadline: float, tell: Tell) -> None:
        self.epoch = epoch
        self.m = m
        self.digest = digest
        self.deadline = deadline
        self.tell = tell


class Confirmations:
    """Listens to one shard's namings and tells waiters. `run` must be running; without it nobody is told anything.

    `redis` is a door for questions to the head, not the deciding one.
    """

    def __init__(self, settings: Settings, redis: RedisDoor, shard: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._settings = settings
        self._redis = redis
        self._shard = shard
        self._clock = clock
        self._ask_confirmed = lua.load("ask_confirmed")
        self._waiting: dict[tuple[int, int], list[_Waiter]] = {}
        """By (epoch, m). Insertion order is nearly the order of m: calls go out one after the other."""
        self._named: dict[tuple[int, int], str] = {}
        self._order_named: deque[tuple[int, int]] = deque()
        self._highest = (0, 0)
        self.epoch = 0
        """The highest epoch of which this process knows a confirmed entry: those before it are over."""
        self._known = NONE_KNOWN
        self._last_news = clock.monotonic()
        self._ask_now = asyncio.Event()
        self._subscribed = asyncio.Event()
        self.missed = 0
        """How many entries were asked for because no naming of them came."""

    def known(self, epoch: int) -> Position:
        """The highest entry of `epoch` that this process knows to be confirmed; m 0 without one."""
        return self._known if self.epoch == epoch else NONE_KNOWN

    @property
    def waiting(self) -> int:
        """Entries that somebody waits for."""
        return len(self._waiting)

    async def subscribed(self) -> None:
        """Wait until namings are heard. Nothing is lost before: it is asked for, only later."""
        await self._subscribed.wait()

    # --- wait ---------------------------------------------------------------------------------------------------------

    def expect(self, epoch: int, m: int, digest: str, deadline: float, tell: Tell) -> Callable[[], None]:
        """Have `tell` called once, perhaps before this returns, at the latest a little after `deadline` (monotonic).

        Returns what ends the waiting without `tell` being called.
        """
        entry = (epoch, m)
        waiter = _Waiter(epoch, m, digest, deadline, tell)
        named = self._named.get(entry)
        if named is not None:
            tell(named == digest)
            return _nothing
        if not self._waiting:
            # Silence counts from when somebody began to listen for something.
            self._last_news = self._clock.monotonic()
        self._waiting.setdefault(entry, []).append(waiter)
        if entry <= self._highest:
            self._ask_now.set()
        return lambda: self._forget(waiter)

    async def wait(self, epoch: int, m: int, digest: str, deadline: float) -> bool:
        """Wait for one entry: True once it is confirmed, False if it is not the one that counts.

        Raises TimeoutError after `deadline` (monotonic seconds). May be cancelled at any time.
        """
        verdict: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()

        def tell(told: bool | None) -> None:
            if not verdict.done():
                verdict.set_result(told)

        stop = self.expect(epoch, m, digest, deadline, tell)
        try:
            confirmed = await verdict
        finally:
            stop()
        if confirmed is None:
            raise TimeoutError(f"entry {m} of epoch {epoch} was not confirmed in time")
        return confirmed

    def _forget(self, waiter: _Waiter) -> None:
        entry = (waiter.epoch, waiter.m)
        waiters = self._waiting.get(entry, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiting[entry]

    def _settle(self, entry: tuple[int, int], digest: str) -> None:
        """Tell everybody who waits for this entry that `digest` is the one confirmed."""
        for waiter in self._waiting.pop(entry, ()):
            waiter.tell(waiter.digest == digest)

    # --- listen -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Listen and ask for ever; ends only by cancellation. Waiters left then are told None."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen_for_ever())
                tasks.create_task(self._ask_for_ever())
        finally:
            waiters = [waiter for waiters in self._waiting.values() for waiter in waiters]
            self._waiting.clear()
            for waiter in waiters:
                waiter.tell(None)

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._listen()
            except StockgateError:
                # Redis is away or the line is cut; what is named meanwhile is asked for afterwards.
                self._subscribed.clear()
            await asyncio.sleep(RESUBSCRIBE_S)

    async def _listen(self) -> None:
        channel = redis_keys.confirmed_channel(self._shard)
        async with open_subscription(self._settings, channel, name="confirmations") as bodies:
            self._subscribed.set()
            self._ask_now.set()
            async for body in bodies:
                try:
                    naming = decode_naming(body)
                except msgspec.MsgspecError:
                    # Not a leader's; entries without a naming are asked for.
                    continue
                self.take(naming)

    def take(self, naming: Naming) -> None:
        """Tell all who wait for these entries: named on the channel, or confirmed to the leader in this process."""
        for m, digest in naming.entries:
            entry = (naming.epoch, m)
            if entry not in self._named:
                self._order_named.append(entry)
            self._named[entry] = digest
            self._highest = max(self._highest, entry)
            self._learn(entry, digest)
            self._settle(entry, digest)
        while len(self._order_named) > NAMED_KEPT:
            del self._named[self._order_named.popleft()]
        self._last_news = self._clock.monotonic()
        # Namings come in order, so who still waits for a lower entry has missed its naming.
        if self._waiting and next(iter(self._waiting)) < self._highest:
            self._ask_now.set()

    def _learn(self, entry: tuple[int, int], digest: str) -> None:
        if entry > (self.epoch, self._known.m):
            self.epoch, self._known = entry[0], Position(entry[1], digest)

    # --- ask ----------------------------------------------------------------------------------------------------------

    async def _ask_for_ever(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(NEWS_MISSING_S):
                    await self._ask_now.wait()
            self._drop_late()
            silent = self._clock.monotonic() - self._last_news >= NEWS_MISSING_S
            if self._waiting and (silent or self._ask_now.is_set()):
                self._ask_now.clear()
                await self._ask_in_order()
            else:
                self._ask_now.clear()

    def _drop_late(self) -> None:
        now = self._clock.monotonic()
        late = [waiter for waiters in self._waiting.values() for waiter in waiters if waiter.deadline <= now]
        for waiter in late:
            self._forget(waiter)
            waiter.tell(None)

    async def _ask_in_order(self) -> None:
        """Ask the head about what is waited for, oldest first; behind an entry that is pending all others are too."""
        pending_epochs: set[int] = set()
        for entry in sorted(self._waiting):
            if entry[0] in pending_epochs:
                continue
            for digest in {waiter.digest for waiter in self._waiting.get(entry, ())}:
                try:
                    told = await self._ask(*entry, digest)
                except (StoreUnavailable, ScriptFailed):
                    # Asked again after the next silence; the deadline ends it.
                    return
                if told is None:
                    pending_epochs.add(entry[0])
                else:
                    self.missed += 1
                    if told:
                        self._learn(entry, digest)
                    self._tell(entry, digest, confirmed=told)

    async def _ask(self, epoch: int, m: int, digest: str) -> bool | None:
        """What the head says: True confirmed, False another digest or gone, None not confirmed yet."""
        names = EpochKeys(self._shard, epoch)
        code: int = await self._redis.run(self._ask_confirmed, [names.head, names.log], [m, digest])
        return None if code == 0 else code == 1

    def _tell(self, entry: tuple[int, int], digest: str, *, confirmed: bool) -> None:
        """Tell those who wait for this entry with this digest."""
        for waiter in [waiter for waiter in self._waiting.get(entry, ()) if waiter.digest == digest]:
            self._forget(waiter)
            waiter.tell(confirmed)


def _nothing() -> None:
    """There is nothing to end."""
