"""A leader's reign over one epoch: everything that it does while the shard is hot, side by side.

The relay is the heart; the rest watches over it. The shard row is read for what the worker, an operator or another leader
wants; the head is checked once a second; what is due expires; what MySQL has may leave. MySQL may be away meanwhile: then
only what rests on its row pauses. Redis may be away for a moment.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from inventory import mode_switch
from inventory.epochs import Steps
from inventory.expiry import Sweeper
from inventory.filter_of_orders import FilterOfOrders
from inventory.head import ChainBroken, Head, HeadState, LeadershipLost, Position
from inventory.hot_path import HotPath
from inventory.leftovers import Leftovers
from inventory.relay import Relay, Tell
from inventory.resend import Resend
from inventory.shard_row import LeaderRow, read_row
from inventory.upkeep import Upkeep
from kernel import failpoints, limits
from kernel.amqp_topology import log_queue
from kernel.errors import StockgateError, StoreRefused, StoreUnavailable
from kernel.metrics import Metrics
from kernel.redis_door import RedisDoor

CHAIN_CHECK_S: Final = 1.0
REDIS_RETRY_S: Final = 0.1
REDIS_AWAY_MAX_S: Final = 3.0
"""A leader that cannot reach Redis for this long leaves the lock to one that perhaps can."""
REDIS_AWAY_SWITCHING_MAX_S: Final = 1.0
"""The same while MySQL is to decide anyway: it does not need Redis for that."""
DRAIN_LOOK_S: Final = 1.0
"""While a log is drained for a switch, its leader sees this often whether Redis can still be written to."""
SWEEP_S: Final = 0.5
UPKEEP_S: Final = 1.0
FILTER_LOOK_S: Final = 2.0
"""How often the leader looks whether the filter of known orders has to be filled."""
SKEWED_READINGS: Final = 2
"""So many readings in a row must show a skewed clock before the shard is fenced: one may have been held up."""


class _EpochClosed(Exception):
    """The row has moved on; there is nothing left to lead in this epoch."""


@dataclass(frozen=True, slots=True)
class Doors:
    """The connections of a leader to Redis. Reading waits, naming is urgent, the rest is neither."""

    reader: RedisDoor
    namer: RedisDoor


class Reign:
    """One leader, one term, one epoch; made after the head was taken over.

    `run` returns when the epoch is closed, and raises LeadershipLost or what the publisher raises on any doubt.
    """

    def __init__(
        self,
        *,
        steps: Steps,
        head: Head,
        doors: Doors,
        hot_path: HotPath,
        metrics: Metrics,
        row: LeaderRow,
        state: HeadState,
        tell: Tell,
    ) -> None:
        settings = steps.settings
        self._steps = steps
        self._head = head
        self._metrics = metrics
        self._row = row
        self._log: FilteringBoundLogger = steps.log.bind(epoch=row.epoch, term=row.term)
        self._fenced = state.fenced
        self._head_m = state.m
        self._closing = False
        self._switching = 0
        self._close_task: asyncio.Task[None] | None = None
        self._skewed = 0
        self._caught_up_ms = 0
        self._resend = Resend()
        self._failing: set[str] = set()
        applied = Position(row.applied_m, row.applied_digest)
        self.relay = Relay(
            publisher=steps.publisher,
            reader=doors.reader,
            head=head,
            start=applied,
            named_m=max(state.confirmed_m, row.applied_m),
            tell=tell,
        )
        self._sweeper = Sweeper(
            hot_path=hot_path,
            redis=steps.redis,
            database=steps.database,
            keys=head.keys,
            term=row.term,
            not_before_ms=state.opened_ms + settings.hold_grace_ms,
        )
        self._upkeep = Upkeep(
            head=head,
            redis=steps.redis,
            database=steps.database,
            log_bytes_max=settings.log_bytes_max,
            evict_after_ms=settings.evict_after_s * 1000,
        )
        self._filter = FilterOfOrders(head=head, database=steps.database, log=self._log)

    async def run(self) -> None:
        """Lead until the epoch is closed."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.relay.run(), name="relay")
                group.create_task(self._watch_chain(), name="watch chain")
                group.create_task(self._watch_row(group), name="watch row")
                group.create_task(self._every(SWEEP_S, "expiry", self._sweep), name="expiry")
                group.create_task(self._every(UPKEEP_S, "upkeep", self._keep_up), name="upkeep")
                group.create_task(self._clear_leftovers(), name="leftovers")
                group.create_task(self._every(FILTER_LOOK_S, "filter", self._filter.fill), name="filter")
        except* _EpochClosed:
            self._log.info("epoch is closed")
        except* ChainBroken:
            # Whatever is decided here from now on is for nothing, and what is read here may be older than what was told
            # before. A new term may be long in coming (without MySQL there is none), so nobody waits for it unfenced.
            with suppress(StockgateError, LeadershipLost):
                await self._head.fence(on=True)
            raise

    # --- the head -----------------------------------------------------------------------------------------------------

    async def _watch_chain(self) -> None:
        """See once a second, and as soon as Redis is back, that the log is the one that was published."""
        answered_at = self._steps.clock.monotonic()
        while True:
            named_m = self.relay.named_m
            try:
                state = await self._head.check(self.relay.read)
                await self._remind_of_what_was_forgotten(state, named_m)
            except StoreUnavailable as away:
                limit_s = REDIS_AWAY_SWITCHING_MAX_S if self._row.switch_to == "db" else REDIS_AWAY_MAX_S
                if self._steps.clock.monotonic() - answered_at > limit_s:
                    raise LeadershipLost(f"Redis does not answer: {away}") from away
                await asyncio.sleep(REDIS_RETRY_S)
                continue
            answered_at = self._steps.clock.monotonic()
            self._head_m = state.m
            self._show()
            await asyncio.sleep(CHAIN_CHECK_S)

    async def _remind_of_what_was_forgotten(self, state: HeadState, named_m: int) -> None:
        """Tell the head again what it was told. `named_m` is the confirmed mark as it was before the check.

        A Redis that lost its last moment (`everysec` does, with its machine) may still hold every entry that was read, and
        bear this term, and yet not know a fence, its end, or that entries were confirmed. Nothing else would tell it.
        """
        if self._closing and self._fenced and not state.fenced:
            await self._head.fence(on=True)
        else:
            self._fenced = state.fenced
        if state.confirmed_m < named_m:
            await self.relay.name_again()

    # --- the row ------------------------------------------------------------------------------------------------------

    async def _watch_row(self, group: asyncio.TaskGroup) -> None:
        """Read the row again and again and do what it asks for."""
        while True:
            if await self._attempt("row", self._read_row):
                self._heed_abort()
                await self._attempt("fence", self._fence_as_needed)
                await self._attempt("resend", self._resend_as_needed)
                await self._attempt("held keys", self._freeze_as_needed)
                if self._row.switch_to == "hot" and not self._fenced:
                    await self._attempt("switch", self._finish_switch)
                self._close_as_needed(group)
            await asyncio.sleep(limits.SHARD_POLL_MS / 1000)

    async def _read_row(self) -> None:
        row = await read_row(self._steps.database, self._steps.shard)
        if row.term != self._row.term:
            raise LeadershipLost(f"term {row.term} has begun")
        if row.epoch != self._row.epoch or row.mode != "hot":
            if self._closing:
                return
            raise _EpochClosed
        self._row = row
        self._show()

    async def _fence_as_needed(self) -> None:
        """Fence while the clocks disagree; unfence what an opening, or a closing that was given up, left fenced."""
        skew_ms = await self._head.now_ms() - self._row.now_ms
        self._metrics.clock_skew_seconds.labels(self._steps.shard).set(skew_ms / 1000)
        self._skewed = self._skewed + 1 if abs(skew_ms) > limits.CLOCK_SKEW_MS_MAX else 0
        if self._skewed >= SKEWED_READINGS and not self._fenced:
            self._log.error("fenced: the clocks of Redis and MySQL disagree", skew_ms=skew_ms)
            await self._head.fence(on=True)
            self._fenced = True
        if self._fenced and not self._skewed and not self._must_close:
            await self._head.fence(on=False)
            self._fenced = False
            failpoints.hit("leader.after_unfence")

    async def _resend_as_needed(self) -> None:
        """Fill a queue again that has lost messages."""
        row, now = self._row, self._steps.clock.monotonic()
        wanted = self._resend.wanted(now, row.applied_m, row.wanted_m)
        if wanted or (self._resend.stalled(now, self.relay.named_m) and await self._queue_is_idle()):
            self._log.warning("entries are published again", after_m=row.applied_m, wanted_m=row.wanted_m)
            self._metrics.resends_total.labels(self._steps.shard).inc()
            self._resend.sent(now)
            self.relay.rewind(Position(row.applied_m, row.applied_digest))

    async def _queue_is_idle(self) -> bool:
        """Whether the queue holds nothing for a worker that is there. A queue that is gone ends the leadership."""
        try:
            ready, consumers = await self._steps.publisher.queue_depth(log_queue(self._steps.shard))
        except StoreRefused as refused:
            raise LeadershipLost(f"the shard's queue is not what it was: {refused}") from refused
        return ready == 0 and consumers > 0

    async def _freeze_as_needed(self) -> None:
        held = await self._upkeep.freeze_held(self._row.held_version)
        if held is not None:
            self._metrics.held_keys.labels(self._steps.shard).set(held)

    # --- switching and closing ------------------------------------------------------------------------------------------------------

    @property
    def _must_close(self) -> bool:
        return self._closing or bool(self._row.rebuild_wanted) or self._row.switch_to == "db"

    def _close_as_needed(self, group: asyncio.TaskGroup) -> None:
        """Begin to close, once. What is under way goes on first; of two wishes the switch, which contains the other."""
        if self._closing:
            return
        if self._row.switch_to == "db":
            self._closing, self._switching = True, self._row.switch_id
            self._close_task = group.create_task(self._close_for_switch(self._row), name="close")
        elif self._row.rebuild_wanted:
            self._closing = True
            group.create_task(self._close("opening"), name="close")

    def _heed_abort(self) -> None:
        """Stop closing for a switch that was aborted. That it was says that its CLOSE is not published, and never will be."""
        if self._switching and self._row.switch_id != self._switching:
            self._log.warning("the switch was aborted", switch=self._switching)
            if self._close_task is not None:
                self._close_task.cancel()
            self._closing, self._switching = False, 0

    async def _finish_switch(self) -> None:
        """Redis decides: the switch that wanted it is over."""
        failpoints.hit("leader.before_switch_done")
        steps, row = self._steps, self._row
        await mode_switch.finish(steps.database, steps.shard, row.switch_id, row.term, steps=("unfence",), detail="")
        self._log.info("Redis decides", switch=row.switch_id)

    async def _close_for_switch(self, row: LeaderRow) -> None:
        """Close so that MySQL decides. Until the close is claimed the switch may be aborted: then this ends, or is ended.

        The log's end is fixed after the claim, so that nothing of it has to be taken back.
        """
        self._log.warning("MySQL is to decide", switch=row.switch_id)
        await self._fence_or_give_up()
        self._fenced = True
        failpoints.hit("leader.after_fence")
        await self._until_done("switch", lambda: self._steps.note_step(row, "fence"))
        await self._until_done("head", self._read_head)
        await self._drain()
        await self._until_done("switch", lambda: self._steps.note_step(row, "drain"))
        failpoints.hit("leader.after_drain")
        claimed: list[bool] = []

        async def claim() -> None:
            claimed.append(await self._steps.claim_close(row))

        await self._until_done("switch", claim)
        if not claimed[-1]:
            return
        self.relay.end_at(self._head_m)
        await self._steps.close(row, self._head_m, "db")
        raise _EpochClosed

    async def _drain(self) -> None:
        """Wait until the whole log is confirmed and named, as long as Redis can be written to: without that nothing is."""
        while self.relay.named_m < self._head_m:
            with suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_LOOK_S):
                    await self.relay.caught_up(self._head_m)
                    return
            await self._fence_or_give_up()

    async def _fence_or_give_up(self) -> None:
        """Fence, or raise LeadershipLost: a Redis that answers and takes no writes is as good as away to this switch."""
        deadline = self._steps.clock.monotonic() + REDIS_AWAY_SWITCHING_MAX_S
        while not await self._attempt("fence", lambda: self._head.fence(on=True)):
            if self._steps.clock.monotonic() > deadline:
                raise LeadershipLost("Redis does not take the fence that a switch needs")
            await asyncio.sleep(REDIS_RETRY_S)

    async def _close(self, next_mode: str) -> None:
        """Fence, relay what the log still holds, and send CLOSE behind it until the worker has obeyed."""
        self._log.warning("epoch is to be closed", next_mode=next_mode, reason=self._row.rebuild_reason)
        await self._until_done("fence", lambda: self._head.fence(on=True))
        self._fenced = True
        failpoints.hit("leader.after_fence")
        await self._until_done("head", self._read_head)
        self.relay.end_at(self._head_m)
        await self.relay.caught_up(self._head_m)
        await self._steps.close(self._row, self._head_m, next_mode)
        raise _EpochClosed

    async def _read_head(self) -> None:
        self._head_m = (await self._head.check(self.relay.read)).m

    async def _until_done(self, what: str, act: Callable[[], Awaitable[object]]) -> None:
        while not await self._attempt(what, act):
            await asyncio.sleep(REDIS_RETRY_S)

    # --- the rest -----------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        if not self._fenced:
            await self._sweeper.sweep(await self._head.now_ms())

    async def _keep_up(self) -> None:
        row = self._row
        size = await self._head.size()
        self._metrics.unconfirmed_bytes.labels(self._steps.shard).set(size.unconfirmed_bytes)
        # What the chain is checked at stays, and so does everything that the worker still asks for.
        known_m = row.applied_m if row.wanted_m > row.applied_m else min(self.relay.named_m, self.relay.read.m)
        await self._upkeep.trim(row.applied_m, known_m, size.log_bytes)
        await self._upkeep.evict(row.applied_m)

    async def _clear_leftovers(self) -> None:
        leftovers = Leftovers(
            redis=self._steps.redis,
            database=self._steps.database,
            shard=self._steps.shard,
            row=self._row,
            clock=self._steps.clock,
            log=self._log,
        )

        async def clear() -> None:
            reported = await leftovers.clear()
            self._metrics.stale_entries_total.labels(self._steps.shard).inc(reported)

        while not await self._attempt("leftovers", clear):
            await asyncio.sleep(UPKEEP_S)

    async def _every(self, pause_s: float, what: str, act: Callable[[], Awaitable[object]]) -> None:
        while True:
            await self._attempt(what, act)
            await asyncio.sleep(pause_s)

    async def _attempt(self, what: str, act: Callable[[], Awaitable[object]]) -> bool:
        """Do something that may fail without ending the leadership; whether it went well. Logs the first failure."""
        try:
            await act()
        except StoreUnavailable as away:
            if away.store == "rabbitmq":
                raise
            self._note_failure(what, away)
            return False
        except StockgateError as failure:
            self._note_failure(what, failure)
            return False
        self._failing.discard(what)
        return True

    def _note_failure(self, what: str, failure: StockgateError) -> None:
        if what not in self._failing:
            self._failing.add(what)
            self._log.warning("the leader could not do this now", what=what, failure=str(failure))

    def _show(self) -> None:
        shard, metrics, row = self._steps.shard, self._metrics, self._row
        head_m = max(self._head_m, self.relay.read.m)
        lag = max(0, head_m - row.applied_m)
        metrics.show_mode(shard, row.mode)
        metrics.fenced.labels(shard).set(1 if self._fenced else 0)
        metrics.epoch.labels(shard).set(row.epoch)
        metrics.log_head_m.labels(shard).set(head_m)
        metrics.confirmed_m.labels(shard).set(self.relay.named_m)
        metrics.applied_m.labels(shard).set(row.applied_m)
        metrics.persist_lag_entries.labels(shard).set(lag)
        if not lag:
            self._caught_up_ms = row.now_ms
        # What waits came after the last reading at which nothing did, however long ago the last change was.
        oldest_ms = max(row.applied_event_ms, self._caught_up_ms)
        metrics.persist_lag_seconds.labels(shard).set(max(0, row.now_ms - oldest_ms) / 1000)
