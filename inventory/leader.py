"""The leader of a shard: candidate, lock, term, reign.

The lock is an exclusive queue on the very connection that publishes. Whatever is in doubt, the connection is dropped, the
lock with it, and this process stands as a candidate again; the term it draws next makes harmless what is still under way.
A candidate that cannot reach Redis leaves the lock to others.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, cast

from structlog.typing import FilteringBoundLogger

from inventory.epochs import Steps
from inventory.events import Naming
from inventory.head import ChainBroken, Head, LeadershipLost
from inventory.hot_path import HotPath
from inventory.loading import Loader
from inventory.reign import Doors, Reign
from inventory.relay import Tell
from inventory.shard_row import LeaderRow, read_row
from inventory.shard_state import ShardWatch
from kernel import failpoints, limits
from kernel.amqp_door import Publisher
from kernel.amqp_topology import leader_lock
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.errors import StoreUnavailable
from kernel.logs import get_logger
from kernel.metrics import Metrics
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys
from kernel.settings import Settings

LOCK_PAUSE_S: Final = (0.3, 0.7)
"""A candidate asks for the lock after a pause drawn from here, so that several do not ask in step. RabbitMQ logs a line
for every refusal: much shorter ones would fill its log."""
START_ANEW_PAUSE_S: Final = (0.1, 0.5)
OUT_OF_REACH_PAUSE_S: Final = (0.5, 1.5)
"""After a try that did not come so far as to lead: longer, so that one who cannot does not stand in the way."""
RESIGN_LIMIT_S: Final = 2.0
"""A leader that is asked to end waits so long for what it has published to be confirmed and named."""


def _tell_nobody(_naming: Naming) -> None:
    pass


class LeaderStatus(NamedTuple):
    """What this process is to the shard now. `term` and `epoch` are 0 where it does not lead."""

    leading: bool
    term: int
    epoch: int


class Leader:
    """One shard's candidate in this process, and its leader while it has the lock."""

    def __init__(
        self,
        settings: Settings,
        shard: int,
        *,
        database: Database,
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
        name: str = "leader",
        tell: Tell = _tell_nobody,
    ) -> None:
        """`tell` hears what is confirmed before it is named to all, and without the way over Redis."""
        self._settings = settings
        self._tell = tell
        self.shard = shard
        self._database = database
        self._metrics = metrics
        self._clock = clock
        self._name = f"{name}.{shard}"
        self._log: FilteringBoundLogger = get_logger().bind(shard=shard)
        self._reign: Reign | None = None
        self._ending = False
        self._broken_at: tuple[int, int] | None = None
        self._noted = ""
        self._changes = 0
        self.connections = 0
        """How many it has made to the broker."""
        self.failure = ""
        """Why this process neither leads nor waits for the lock; empty while it does."""
        self.status = LeaderStatus(leading=False, term=0, epoch=0)

    async def run(self, stop: asyncio.Event) -> None:
        """Stand as a candidate and lead, until `stop` is set. Never raises for a store's trouble."""
        self._metrics.leader.labels(self.shard).set(0)
        async with asyncio.TaskGroup() as group:
            standing = group.create_task(self._stand(stop), name="leader")
            asked = group.create_task(stop.wait(), name="asked to end")
            try:
                await asyncio.wait((standing, asked), return_when=asyncio.FIRST_COMPLETED)
                if not stop.is_set():
                    # Nobody would miss a candidate that ends in silence before the last one has.
                    raise RuntimeError("the candidate has ended though nobody asked it to")
                await self._finish()
            finally:
                # Said before anything is cancelled: where a part fails at that very moment, its group raises the failure
                # in place of the cancellation, and who takes that for a reason to begin anew would lead for ever.
                self._ending = True
            standing.cancel()

    async def _finish(self) -> None:
        """Let what is under way be confirmed and named, so that nobody waits for the next leader in vain."""
        if (reign := self._reign) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(RESIGN_LIMIT_S):
                    await reign.relay.caught_up(reign.relay.read.m)

    async def _stand(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            changes = self._changes
            try:
                # In a task of its own, as below: in Python 3.11 one in which a group of tasks has failed goes on as if it were
                # being cancelled, and then takes the end of a time limit for a cancellation.
                await asyncio.create_task(self._stand_once(), name="stand")
            except Exception as failure:  # noqa: BLE001 - whatever it was, the next try begins from what the stores say
                self._note(failure)
            if self._ending:
                return
            pause = START_ANEW_PAUSE_S if self._changes > changes else OUT_OF_REACH_PAUSE_S
            await asyncio.sleep(random.uniform(*pause))

    async def _stand_once(self) -> None:
        """Connect, wait for the lock, lead. Ends by an exception alone."""
        publisher = await Publisher.connect(self._settings, name=self._name, metrics=self._metrics)
        self.connections += 1
        try:
            await publisher.declare_log_queue(self.shard)
            self.failure = ""
            while not await publisher.lock(leader_lock(self.shard)):
                await asyncio.sleep(random.uniform(*LOCK_PAUSE_S))
            failpoints.hit("leader.after_lock")
            await self._lead_until_closed(publisher)
        except asyncio.CancelledError:
            await publisher.close()
            raise
        finally:
            publisher.abandon()

    async def _lead_until_closed(self, publisher: Publisher) -> None:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._fail_when_closed(publisher), name="publisher's connection")
            leading = group.create_task(self._lead(publisher), name="lead")
            # Who is to end may come to the end of it as well as be cancelled: then there is nothing to watch over any more.
            leading.add_done_callback(lambda _: watching.cancel())

    @staticmethod
    async def _fail_when_closed(publisher: Publisher) -> None:
        # Shielded: a cancelled waiter must not cancel the future that others look at.
        reason = await asyncio.shield(publisher.closed)
        raise LeadershipLost(f"the connection that holds the lock is gone: {reason}")

    async def _lead(self, publisher: Publisher) -> None:
        async with self._doors() as (redis, doors, hot_path, watch):
            # Asked before a term is drawn: without Redis there is nothing to lead, and another may reach it.
            await redis.command("PING")
            steps = Steps(self._settings, self.shard, self._database, redis, publisher, self._clock, self._log)
            row = await steps.begin_term()
            self._begins(row)
            try:
                # The end of an epoch may hide a cancellation that comes with it, as above.
                while not self._ending and not publisher.closed.done():
                    await watch.refresh()
                    await asyncio.create_task(self._govern(steps, row, doors, hot_path), name="govern")
                    row = await self._read_own_row(row.term)
            finally:
                self._ends()
                if not self._ending:
                    # However it has ended: nobody may hold the lock without leading.
                    publisher.abandon()

    async def _govern(self, steps: Steps, row: LeaderRow, doors: Doors, hot_path: HotPath) -> None:
        """Do what the row's mode asks for, until it moves."""
        if row.mode == "opening":
            await steps.open(row)
            self._metrics.epochs_opened_total.labels(self.shard).inc()
        elif row.mode == "hot":
            await self._govern_hot(steps, row, doors, hot_path)
        else:
            # Another part decides in this mode; the lock only keeps the shard's log in one hand.
            await asyncio.sleep(limits.SHARD_POLL_MS / 1000)

    async def _govern_hot(self, steps: Steps, row: LeaderRow, doors: Doors, hot_path: HotPath) -> None:
        keys = EpochKeys(self.shard, row.epoch)
        head = Head(door=steps.redis, namer=doors.namer, keys=keys, term=row.term)
        state = await steps.take_over(row, head)
        begins_at = (row.epoch, row.applied_m)
        if state is None or begins_at == self._broken_at:
            # It holds what MySQL has, but nobody gets beyond that: once may be chance, twice in one place is damage.
            self._broken_at = None
            await steps.close_lost(row, head, "opening")
            return
        self._reign = Reign(
            steps=steps,
            head=head,
            doors=doors,
            hot_path=hot_path,
            metrics=self._metrics,
            row=row,
            state=state,
            tell=self._tell,
        )
        self.status = LeaderStatus(leading=True, term=row.term, epoch=row.epoch)
        self._log.info("leading", term=row.term, epoch=row.epoch, applied_m=row.applied_m, head_m=state.m)
        try:
            await self._reign.run()
        except* ChainBroken:
            self._broken_at = begins_at
            raise
        finally:
            self._reign = None

    async def _read_own_row(self, term: int) -> LeaderRow:
        row = await read_row(self._database, self.shard)
        if row.term != term:
            raise LeadershipLost(f"term {row.term} has begun")
        return row

    @asynccontextmanager
    async def _doors(self) -> AsyncGenerator[tuple[RedisDoor, Doors, HotPath, ShardWatch]]:
        """The connections of one leadership, closed at its end; the hot path is the sweeper's own."""
        names = ("", ".reader", ".namer", ".expiry", ".loader")
        redis, reader, namer, expiry, loading = (
            RedisDoor.open(self._settings, name=self._name + suffix, metrics=self._metrics) for suffix in names
        )
        watch = ShardWatch(self._database, self.shard)
        loader = Loader(self._database, loading, self.shard)
        try:
            yield redis, Doors(reader, namer), HotPath(self._settings, expiry, loader, watch), watch
        finally:
            for door in (redis, reader, namer, expiry, loading):
                await door.close()

    def _begins(self, row: LeaderRow) -> None:
        self._noted = ""
        self._changes += 1
        self._metrics.leader.labels(self.shard).set(1)
        self._metrics.leader_changes_total.labels(self.shard).inc()
        self._metrics.term.labels(self.shard).set(row.term)
        self._metrics.resends_total.labels(self.shard)
        self.status = LeaderStatus(leading=True, term=row.term, epoch=row.epoch)

    def _ends(self) -> None:
        self._metrics.leader.labels(self.shard).set(0)
        self._metrics.forget_shard(self.shard)
        self.status = LeaderStatus(leading=False, term=0, epoch=0)

    def _note(self, failure: Exception) -> None:
        """Log why this process starts anew, each reason once in a row; what nobody foresaw with its traceback."""
        causes = list(_causes(failure))
        foreseen = all(isinstance(cause, LeadershipLost | StoreUnavailable) for cause in causes)
        reason = "; ".join(str(cause) for cause in causes)
        self.failure = reason
        if reason != self._noted:
            self._noted = reason
            if foreseen:
                self._log.warning("leadership is given up or out of reach", reason=reason)
            else:
                self._log.error("the leader failed", reason=reason, exc_info=failure)


def _causes(failure: Exception) -> Iterator[Exception]:
    """What a failure consists of, groups taken apart."""
    if isinstance(failure, ExceptionGroup):
        for part in cast("ExceptionGroup[Exception]", failure).exceptions:
            yield from _causes(part)
    else:
        yield failure
