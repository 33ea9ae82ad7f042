"""The persist worker's process: RabbitMQ in, MySQL out, one shard's messages strictly in order.

It connects, applies batches, acknowledges what is committed, and begins anew whenever the connection ends. When a shard
stops for a reason that only a person or a new leader can mend, its messages go back into the queue and the row's alarm
says why; the process stays and tries again when the row has changed.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final

import sql
from inventory.doctor_mysql import watched_mysql
from inventory.doctor_rabbitmq import watched_rabbitmq
from inventory.sequence import ALARMS, LockedShard
from inventory.shard_state import read_shard
from kernel import amqp_topology, health, limits, logs
from kernel.amqp_door import Consumer
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.errors import StockgateError, StoreUnavailable
from kernel.failpoints import hit
from kernel.logs import Logger
from kernel.metrics import Metrics
from kernel.mysql_door import Database
from kernel.process import collect_seldom, run_until_signal
from kernel.settings import Settings
from kernel.settings_watch import SettingsWatch
from persist_worker.apply import Applied, Applier, GaveUp, stopped_state
from persist_worker.gather import Gather

IDLE_S: Final = 0.25
"""How long it waits for a message before it looks at the stop signal, and at a gap, again."""
COUNT_EVERY_S: Final = 5.0
STOPPED_POLL_S: Final = 1.0
STOPPED_RETRY_S: Final = 30.0
"""A stopped shard is tried again after this long even if nothing has changed in its row."""
UNSAFE_POLL_S: Final = 0.05
"""How often it looks whether MySQL has become safe to write to."""
BACKOFF_FIRST_S: Final = 0.1
BACKOFF_MAX_S: Final = 5.0
GARBAGE_LOOK: Final = 200_000
"""A batch is many thousand tuples and none of them in a cycle: to search among them took a quarter of the time."""


class ShardWorker:
    """The worker of one shard. `missing` tells readiness what it lacks at the moment.

    While MySQL is not `safe` to write to, messages stay in the queue, which is on disk: a commit that MySQL may forget must
    not be what lets the broker forget.
    """

    def __init__(
        self,
        settings: Settings,
        shard: int,
        database: Database,
        metrics: Metrics,
        clock: Clock,
        log: Logger,
        safe: Callable[[], bool] = lambda: True,
    ) -> None:
        self._settings = settings
        self._shard = shard
        self._database = database
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._safe = safe
        self.connections = 0
        """How many it has made to the broker."""
        self._applier = Applier(database, shard, clock, log)
        self._broker_trouble = "not connected yet"
        self.gave_up = False
        """Whether the batch in hand could not be committed before it ended: its messages are in the queue again."""
        self._alarm = ""
        self._counted_at = 0.0
        self._backoff_s = BACKOFF_FIRST_S

    def missing(self) -> dict[str, str]:
        """What keeps this shard from being applied right now, by dependency."""
        reasons = {
            "mysql": self._applier.trouble,
            "rabbitmq": self._broker_trouble,
            f"shard {self._shard}": self._alarm,
        }
        return {name: reason for name, reason in reasons.items() if reason}

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set. Failures of the stores never end it."""
        while not stop.is_set():
            if not self._safe():
                await _wait(stop, UNSAFE_POLL_S)
                continue
            try:
                halted = await self._run_connection(stop)
            except StoreUnavailable as failure:
                self._broker_trouble = str(failure)
                self._log.warning("connection_ended", shard=self._shard, why=str(failure))
                await _wait(stop, self._backoff_s * random.uniform(0.5, 1.0))
                self._backoff_s = min(2 * self._backoff_s, BACKOFF_MAX_S)
            except GaveUp:
                self.gave_up = True
                return
            else:
                if halted is not None:
                    await self._wait_for_change(halted, stop)

    async def _run_connection(self, stop: asyncio.Event) -> LockedShard | None:
        """Consume until told to stop or no longer safe (None), or until the shard stops (its row).

        Raises when the connection ends.
        """
        consumer = await Consumer.connect(
            self._settings,
            name=f"persist-worker-{self._shard}",
            prefetch=limits.WORKER_PREFETCH_MESSAGES,
            metrics=self._metrics,
        )
        self.connections += 1
        try:
            await consumer.declare_log_queue(self._shard)
            await consumer.start(amqp_topology.log_queue(self._shard))
            self._broker_trouble = ""
            return await self._consume(consumer, stop)
        finally:
            self._applier.forget_deliveries()
            # Closing the channel returns the rest in its order; a cancelled consumer would not.
            await consumer.close()

    async def _consume(self, consumer: Consumer, stop: asyncio.Event) -> LockedShard | None:
        gather = Gather(consumer, self._shard)
        while not stop.is_set():
            batch = await gather.batch(IDLE_S)
            if not self._safe():
                return None
            await self._count()
            if not batch and not self._applier.waits_for_gap:
                continue
            began = self._clock.monotonic()
            applied = await self._applier.apply(batch, stop)
            self._metrics.worker_batch_seconds.observe(self._clock.monotonic() - began)
            self._backoff_s = BACKOFF_FIRST_S
            self._report(applied, sum(received.incoming.events for received in batch))
            await _acknowledge(consumer, applied)
            hit("worker.after_ack")
            if applied.plan.stopped:
                return applied.plan.shard
        return None

    async def _wait_for_change(self, halted: LockedShard, stop: asyncio.Event) -> None:
        """Wait until the row is not the one at which the shard stopped, an operator's word included."""
        self._log.error("shard_stopped", shard=self._shard, alarm=halted.alarm, why=halted.alarm_detail)
        deadline = self._clock.monotonic() + STOPPED_RETRY_S
        while not stop.is_set() and self._clock.monotonic() < deadline:
            await _wait(stop, STOPPED_POLL_S)
            try:
                row = LockedShard(*await read_shard(self._database, self._shard))
            except StockgateError:
                continue  # whatever MySQL's trouble is, it is not worth the process
            if stopped_state(row) != stopped_state(halted):
                return

    def _report(self, applied: Applied, events: int) -> None:
        plan, metrics, shard = applied.plan, self._metrics, str(self._shard)
        metrics.worker_batch_events.observe(events)
        metrics.worker_duplicates_total.inc(plan.duplicates)
        metrics.worker_skipped_term_total.inc(plan.skipped_term)
        metrics.stale_entries_total.labels(shard).inc(len(plan.stale))
        metrics.applied_m.labels(shard).set(plan.shard.applied_m)
        metrics.epoch.labels(shard).set(plan.shard.epoch)
        metrics.worker_waiting_messages.labels(shard).set(self._applier.waiting)
        if events and plan.shard.applied_event_ms:
            delay_ms = self._clock.now_ms() - plan.shard.applied_event_ms
            metrics.worker_delay_seconds.observe(max(0, delay_ms) / 1000)
        self._set_alarm(plan.shard)
        for key, reason in plan.newly_held:
            self._log.error("key_held", shard=self._shard, inventory_key=key, why=reason)
            self._counted_at = 0.0
        if plan.stale:
            self._log.warning("stale_entries", shard=self._shard, count=len(plan.stale), epoch=plan.stale[0].epoch)
        if plan.closed:
            self._log.info("epoch_closed", shard=self._shard, epoch=plan.shard.epoch, m=plan.shard.applied_m)

    def _set_alarm(self, row: LockedShard) -> None:
        alarm = row.alarm if row.alarm in ALARMS else ""
        if alarm == self._alarm.partition(":")[0]:
            return
        if self._alarm:
            self._metrics.worker_alarm.labels(str(self._shard), self._alarm.partition(":")[0]).set(0)
        if alarm:
            self._metrics.worker_alarm.labels(str(self._shard), alarm).set(1)
            self._log.error("alarm", shard=self._shard, alarm=alarm, why=row.alarm_detail)
        self._alarm = f"{alarm}: {row.alarm_detail}" if alarm else ""

    async def _count(self) -> None:
        """Held keys and parked events, which operators change too."""
        if self._clock.monotonic() < self._counted_at + COUNT_EVERY_S and self._counted_at:
            return
        self._counted_at = self._clock.monotonic()
        try:
            held = await self._database.fetch_all(sql.load("count_held_keys"), (self._shard,))
            parked = await self._database.fetch_all(sql.load("count_parked_events"), (self._shard,))
        except StockgateError:
            return  # the next batch says what MySQL's trouble is
        self._metrics.held_keys.labels(str(self._shard)).set(held[0][0])
        self._metrics.parked_events.labels(str(self._shard)).set(parked[0][0])


async def _acknowledge(consumer: Consumer, applied: Applied) -> None:
    if applied.all_done and applied.acknowledge:
        await consumer.ack_up_to(applied.acknowledge[-1])
        return
    for delivery in applied.acknowledge:
        await consumer.ack(delivery)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


async def work(settings: Settings, stop: asyncio.Event, *, clock: Clock = SYSTEM_CLOCK) -> int:
    """Run the workers of all shards until `stop` is set; returns the exit code, 0 where no batch in hand was given up."""
    log = logs.get_logger()
    metrics = Metrics()
    metrics.describe("persist-worker")
    database = await Database.open(settings, name="persist-worker", pool_max=2 * settings.shards, metrics=metrics)

    def connections() -> int:
        return sum(worker.connections for worker in workers)

    checks = (watched_mysql(database), watched_rabbitmq(settings, "persist-worker", connections))
    watch = SettingsWatch(settings, checks, log=log, metrics=metrics)
    workers = [
        ShardWorker(settings, shard, database, metrics, clock, log, lambda: watch.safe("mysql"))
        for shard in range(settings.shards)
    ]

    def missing() -> Mapping[str, str]:
        own = {name: reason for worker in workers for name, reason in worker.missing().items()}
        ending = {"persist-worker": "shutting down"} if stop.is_set() else {}
        return own | watch.missing() | ending

    log.info("started", shards=settings.shards)
    try:
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(part) for part in (health.serve(settings, missing, metrics), watch.run())]
            async with asyncio.TaskGroup() as running:
                for worker in workers:
                    running.create_task(worker.run(stop))
            for task in beside:
                task.cancel()
    finally:
        await database.close()
    gave_up = [shard for shard, worker in enumerate(workers) if worker.gave_up]
    log.info("stopped", gave_up=gave_up)
    return 1 if gave_up else 0


def run(settings: Settings) -> int:
    """The process: `stockgate persist-worker`. SIGTERM finishes the batch in hand; exit code as `work`."""
    collect_seldom(GARBAGE_LOOK)
    logs.configure(settings, "persist-worker")
    return run_until_signal(lambda stop: work(settings, stop), settings)
