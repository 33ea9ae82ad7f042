"""The leader of a shard: candidate, lock, term, reign.

The lock is an exclusive queue on the very connection that publishes. Whatever is in doubt, the connection is dropped, the
lock with it, and this process stands as a candidate again; the term it draws next makes harmless what is still under way.
A candidate that cannot reach Redis leaves the lock to others, unless MySQL decides, or is to: for that nothing is needed
of Redis.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Final, NamedTuple, cast

from structlog.typing import FilteringBoundLogger

from inventory import mode_switch
from inventory.db_expiry import DbSweeper
from inventory.db_path import DbPath
from inventory.epochs import Steps
from inventory.events import Naming
from inventory.head import ChainBroken, Head, LeadershipLost
from inventory.hot_path import HotPath
from inventory.leftovers import Leftovers
from inventory.loading import Loader
from inventory.mode_switch import SwitchRefused
from inventory.operator_actions import Action
from inventory.reign import SWEEP_S, Doors, Reign
from inventory.relay import Tell
from inventory.shard_row import LeaderRow, enter_db, leave_db, read_row
from inventory.shard_state import ShardWatch
from kernel import failpoints, limits
from kernel.amqp_door import Publisher
from kernel.amqp_topology import leader_lock
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.errors import Retryable, StockgateError, StoreUnavailable
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
REDIS_CHANCE_S: Final = 2.0
"""So long Redis must have been out of reach before its epoch is closed without it, or an opening is given up for mode db:
another candidate may reach it, and it may be back in a moment."""
REDIS_AWAY_GAP_S: Final = 30.0
"""Two failures further apart than this are two absences."""
CLEAR_AGAIN_S: Final = 5.0
"""While MySQL decides, Redis is looked through this often for what a return has brought back."""
HOT_AGAIN_S: Final = 30.0
"""After an opening that was given up for mode db the next one begins so much later: nobody decides while it is tried."""


def _tell_nobody(_naming: Naming) -> None:
    pass


class LeaderStatus(NamedTuple):
    """What this process is to the shard now. `term` and `epoch` are 0 where it does not lead."""

    leading: bool
    term: int
    epoch: int


class _Absence(NamedTuple):
    """Since when Redis has been out of reach without a break, and when it was last, by the monotonic clock, in seconds.

    `epoch` and `applied_m` are the row's: where they have moved, somebody has led in between.
    """

    since_s: float
    last_s: float
    epoch: int
    applied_m: int


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
        self._db_sweeper = DbSweeper(DbPath(settings, database, shard), settings, database, shard)
        self.shard = shard
        self._database = database
        self._metrics = metrics
        self._clock = clock
        self._name = f"{name}.{shard}"
        self._log: FilteringBoundLogger = get_logger().bind(shard=shard)
        self._reign: Reign | None = None
        self._ending = False
        self._wish_heard = False
        self._broken_at: tuple[int, int] | None = None
        self._noted = ""
        self._changes = 0
        self._absence: _Absence | None = None
        self._given_up = (0, 0.0)
        self._clearing: asyncio.Task[None] | None = None
        self._waits_for = (0, "")
        self._sweep_failure = ""
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
            await self._ask_redis_before_term(redis)
            steps = Steps(self._settings, self.shard, self._database, redis, publisher, self._clock, self._log)
            row = await steps.begin_term()
            self._begins(row)
            try:
                # The end of an epoch may hide a cancellation that comes with it, as above.
                while not self._ending and not publisher.closed.done():
                    await watch.refresh()
                    await self._hear_configuration()
                    await asyncio.create_task(self._govern(steps, row, doors, hot_path), name="govern")
                    row = await self._read_own_row(row.term)
            finally:
                self._ends()
                if not self._ending:
                    # However it has ended: nobody may hold the lock without leading.
                    publisher.abandon()

    async def _govern(self, steps: Steps, row: LeaderRow, doors: Doors, hot_path: HotPath) -> None:
        """Do what the row's mode asks for, until it moves."""
        if row.mode != "db":
            self._stop_clearing()
        if row.mode == "opening":
            await self._govern_opening(steps, row)
        elif row.mode == "hot":
            await self._govern_hot(steps, row, doors, hot_path)
        else:
            await self._govern_db(steps, row)

    async def _govern_opening(self, steps: Steps, row: LeaderRow) -> None:
        """Open an epoch; or let MySQL decide, where that is wanted, or Redis went away on the way back to it."""
        if row.switch_to == "db":
            # CLOSE was obeyed, so MySQL has everything: no epoch has to be opened only to be closed again.
            await enter_db(self._database, self.shard, row)
            return
        obstacle = ""
        try:
            if row.switch_to == "hot":
                obstacle = await steps.obstacle_to_open()
            if not obstacle:
                await steps.open(row)
                self._absence = None
                self._metrics.epochs_opened_total.labels(self.shard).inc()
                return
        except StoreUnavailable as away:
            if away.store != "redis" or not (row.switch_to == "hot" or await self._goes_on_without_redis(row)):
                raise
            obstacle = f"Redis is out of reach: {away}"
        if row.switch_to == "hot":
            await self._wait_for(steps, row, obstacle)
            if self._note_absence(row) >= REDIS_CHANCE_S and await enter_db(self._database, self.shard, row):
                self._log.error("MySQL decides again: no epoch could be opened", reason=obstacle)
                self._given_up = (row.switch_id, self._clock.monotonic())
                return
            await asyncio.sleep(limits.SHARD_POLL_MS / 1000)

    async def _govern_db(self, steps: Steps, row: LeaderRow) -> None:
        """One round of the mode in which MySQL decides; the lock only keeps the shard in one hand."""
        self._show_db(row)
        if self._clearing is None:
            self._clearing = asyncio.create_task(self._clear_again_and_again(steps, row), name="leftovers")
        elif self._clearing.done():
            self._clearing.result()  # ends by what nobody foresaw alone: that must not stay unseen
        if row.switch_to == "db":
            failpoints.hit("leader.before_switch_done")
            await mode_switch.finish(self._database, self.shard, row.switch_id, row.term, steps=("closed",))
            self._log.info("MySQL decides", switch=row.switch_id, epoch=row.epoch)
            return
        if row.switch_to == "hot" and not self._rests(row):
            obstacle = await steps.obstacle_to_open()
            await self._wait_for(steps, row, obstacle)
            if not obstacle and await self._leave_db(row):
                return
        try:
            await self._db_sweeper.sweep(term=row.term)
            self._sweep_failure = ""
        except StockgateError as failure:
            if self._sweep_failure != str(failure):
                self._log.warning("what is due could not be released", failure=str(failure))
            self._sweep_failure = str(failure)
        await asyncio.sleep(SWEEP_S)

    async def _clear_again_and_again(self, steps: Steps, row: LeaderRow) -> None:
        """Let a Redis that comes back hold nothing of its old epochs: not a head that a gateway could still believe in."""
        while True:
            head = Head(door=steps.redis, namer=steps.redis, keys=EpochKeys(self.shard, row.epoch - 1), term=row.term)
            leftovers = Leftovers(
                redis=steps.redis, database=self._database, shard=self.shard, row=row, clock=self._clock, log=self._log
            )
            # An epoch that was closed without its Redis is fenced first. Often it has no head, or Redis is still away.
            with suppress(StockgateError, LeadershipLost):
                await head.fence(on=True)
            # A gateway that missed a naming still asks the head for it.
            await asyncio.sleep(CLEAR_AGAIN_S)
            with suppress(StockgateError):
                self._metrics.stale_entries_total.labels(self.shard).inc(await leftovers.clear())

    def _stop_clearing(self) -> None:
        if self._clearing is not None:
            self._clearing.cancel()
            self._clearing = None

    def _rests(self, row: LeaderRow) -> bool:
        """Whether this switch to hot was tried and given up just now."""
        switch_id, at_s = self._given_up
        return row.switch_id == switch_id and self._clock.monotonic() < at_s + HOT_AGAIN_S

    async def _leave_db(self, row: LeaderRow) -> bool:
        """Let nobody decide, once all that MySQL is deciding is done; False where that has to be tried again."""
        try:
            left = await leave_db(self._database, self.shard, row)
        except Retryable as failure:
            self._log.info("the row is locked", reason=str(failure))
            return False
        if left:
            self._absence = None
            failpoints.hit("leader.after_leave_db")
        return left

    async def _wait_for(self, steps: Steps, row: LeaderRow, obstacle: str) -> None:
        """Say in the log and in the switch what it waits for, each thing once."""
        if (row.switch_id, obstacle) != self._waits_for:
            await steps.note(row, obstacle)
            self._waits_for = (row.switch_id, obstacle)
            if obstacle:
                self._log.warning("a switch waits", switch=row.switch_id, reason=obstacle)

    async def _govern_hot(self, steps: Steps, row: LeaderRow, doors: Doors, hot_path: HotPath) -> None:
        keys = EpochKeys(self.shard, row.epoch)
        head = Head(door=steps.redis, namer=doors.namer, keys=keys, term=row.term)
        try:
            state = await steps.take_over(row, head)
        except StoreUnavailable as away:
            if away.store != "redis" or not await self._goes_on_without_redis(row):
                raise
            row = await self._read_own_row(row.term)
            if row.switch_to == "db":
                await steps.close_lost(row, head, "db", f"Redis is out of reach: {away}")
            return
        self._absence = None
        begins_at = (row.epoch, row.applied_m)
        if state is None or begins_at == self._broken_at:
            # It holds what MySQL has, but nobody gets beyond that: once may be chance, twice in one place is damage.
            self._broken_at = None
            next_mode = row.switch_to if row.switch_to == "db" else "opening"
            await steps.close_lost(row, head, next_mode, "Redis is not the continuation of what was published")
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

    async def _hear_configuration(self) -> None:
        """Ask for the mode that configuration wants, once for each start, unless something was asked for since."""
        wish, at = self._settings.mode_wish, self._settings.mode_wish_at
        if self._wish_heard or not wish or at is None:
            return
        action = Action("configuration", f"switch_to_{wish}", f"shard {self.shard}", self._settings.mode_wish_reason)
        wished_ms = int(at.timestamp() * 1000)
        try:
            switch_id = await mode_switch.request_switch(self._database, self.shard, wish, action, wished_ms=wished_ms)
            self._log.warning("configuration wants another mode", switch=switch_id, to_mode=wish)
        except mode_switch.AlreadyThere:
            pass
        except (mode_switch.SwitchRunning, StockgateError):
            return  # asked again when the row has moved, or in the next term
        except SwitchRefused as refused:
            self._log.info("what configuration wants is out of date", to_mode=wish, reason=str(refused))
        self._wish_heard = True

    # --- without Redis ------------------------------------------------------------------------------------------------

    async def _ask_redis_before_term(self, redis: RedisDoor) -> None:
        """Raise StoreUnavailable, before a term is drawn, if Redis is needed and away: another candidate may reach it."""
        try:
            await redis.command("PING")
        except StoreUnavailable:
            row = await read_row(self._database, self.shard)
            if row.mode != "db" and not await self._goes_on_without_redis(row):
                raise

    async def _goes_on_without_redis(self, row: LeaderRow) -> bool:
        """Note that Redis could not be asked while it decides or is to; whether the shard goes on towards mode db.

        Asks for that itself where the settings say so.
        """
        away_s = self._note_absence(row)
        if row.switch_to == "hot" and row.mode == "hot" and away_s >= REDIS_CHANCE_S:
            # It was opened and never unfenced. Only an ended switch lets anybody ask for mode db.
            await mode_switch.finish(
                *(self._database, self.shard, row.switch_id, row.term),
                status="FAILED",
                detail="Redis went away before its new epoch was unfenced",
            )
            return False
        if not row.switch_to and 0 < self._settings.auto_db_after_s <= away_s:
            return await self._ask_for_db(away_s)
        return row.switch_to != "" and (away_s >= REDIS_CHANCE_S or (row.mode, row.switch_to) == ("opening", "db"))

    def _note_absence(self, row: LeaderRow) -> float:
        """Redis is out of reach now; for how many seconds it has been, as far as this candidate knows."""
        now_s, absence = self._clock.monotonic(), self._absence
        if (
            absence is None
            or now_s - absence.last_s > REDIS_AWAY_GAP_S
            or (absence.epoch, absence.applied_m) != (row.epoch, row.applied_m)
        ):
            absence = _Absence(now_s, now_s, row.epoch, row.applied_m)
        self._absence = absence._replace(last_s=now_s)
        return now_s - absence.since_s

    async def _ask_for_db(self, away_s: float) -> bool:
        """Ask for mode db on nobody's behalf; whether such a switch runs now."""
        action = Action("stockgate", "switch_mode", f"shard {self.shard}", f"Redis has been away for {away_s:.0f} s")
        try:
            switch_id = await mode_switch.request_switch(self._database, self.shard, "db", action)
        except SwitchRefused as refused:
            self._log.info("no switch to db", reason=str(refused))
            return False
        self._log.error("MySQL is to decide: Redis is away", switch=switch_id, away_s=round(away_s, 1))
        return True

    def _show_db(self, row: LeaderRow) -> None:
        self._metrics.forget_head(self.shard)
        self._metrics.show_mode(self.shard, row.mode)
        self._metrics.epoch.labels(self.shard).set(row.epoch)
        self._metrics.applied_m.labels(self.shard).set(row.applied_m)
        self.status = LeaderStatus(leading=True, term=row.term, epoch=row.epoch)

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
        self._stop_clearing()
        self._metrics.leader.labels(self.shard).set(0)
        self._metrics.forget_shard(self.shard)
        self.status = LeaderStatus(leading=False, term=0, epoch=0)

    def _note(self, failure: Exception) -> None:
        """Log why this process starts anew, each reason once in a row; what nobody foresaw with its traceback."""
        causes = list(_causes(failure))
        foreseen = all(isinstance(cause, LeadershipLost | StoreUnavailable | Retryable) for cause in causes)
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
