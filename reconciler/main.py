"""The reconciler's process: a pass every `reconcile_interval_s`, and the comparisons that were asked for."""

import asyncio
from contextlib import suppress

from inventory import reconcile_tasks
from inventory.compare import Findings, KeyClass
from inventory.doctor_mysql import watched_mysql
from inventory.doctor_redis import watched_redis
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.errors import StockgateError, StoreUnavailable
from kernel.health import serve
from kernel.logs import configure, get_logger
from kernel.metrics import Metrics
from kernel.mysql_door import Database
from kernel.process import run_until_signal
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from kernel.settings_watch import SettingsWatch
from reconciler.passes import Reconciler

REQUESTS_POLL_S = 1.0
FAILURE_PAUSE_S = 1.0

log = get_logger()


class Process:
    """What the process holds: its doors, one reconciler for each shard, and why it is not ready."""

    def __init__(
        self, settings: Settings, database: Database, redis: RedisDoor, metrics: Metrics, clock: Clock
    ) -> None:
        self._settings = settings
        self._database = database
        self._metrics = metrics
        self._clock = clock
        self.failure: StockgateError | None = None
        self._reconcilers = [
            Reconciler(database, redis, shard, clock=clock, in_flight_alarm_s=settings.in_flight_alarm_s)
            for shard in range(settings.shards)
        ]

    async def run(self, stop: asyncio.Event) -> None:
        """Compare until told to stop; a store that is away is waited for."""
        next_pass = self._clock.monotonic()
        while not stop.is_set():
            try:
                await self._requests()
                if self._clock.monotonic() >= next_pass:
                    for shard, reconciler in enumerate(self._reconcilers):
                        await self._periodic(shard, reconciler)
                    next_pass = self._clock.monotonic() + self._settings.reconcile_interval_s
                self.failure = None
                pause_s = min(REQUESTS_POLL_S, max(0.01, next_pass - self._clock.monotonic()))
            except StockgateError as failure:
                if self.failure is None:
                    log.warning("comparison interrupted", reason=str(failure))
                self.failure, pause_s = failure, FAILURE_PAUSE_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()

    async def _periodic(self, shard: int, reconciler: Reconciler) -> None:
        started_ms = self._clock.now_ms()
        findings = await reconciler.run([], dry_run=False, requested_by="reconciler")
        if findings is None:
            return
        await reconcile_tasks.record_periodic(self._database, shard, findings, started_ms, self._clock.now_ms())
        self._count(shard, findings)
        for key_class in KeyClass:
            gauge = self._metrics.reconcile_keys.labels(shard=str(shard), **{"class": key_class.value})
            gauge.set(findings.classes[key_class])
        if findings.stuck:
            log.error("keys do not reach MySQL", shard=shard, keys=findings.stuck, detail=findings.detail)

    async def _requests(self) -> None:
        for task in await reconcile_tasks.pending(self._database, self._clock.now_ms()):
            if not await reconcile_tasks.claim(self._database, task, self._clock.now_ms()):
                continue
            reconciler = self._reconcilers[task.shard]
            findings = await reconciler.run(task.keys, dry_run=task.dry_run, requested_by=f"task {task.task_id}")
            await reconcile_tasks.finish(self._database, task.task_id, findings, self._clock.now_ms())
            if findings is not None:
                self._count(task.shard, findings)

    def _count(self, shard: int, findings: Findings) -> None:
        del shard
        self._metrics.drift_found_total.inc(findings.classes[KeyClass.DRIFTED])
        self._metrics.drift_repaired_total.inc(findings.repaired)


def run(settings: Settings) -> int:
    """Run the reconciler until SIGTERM; answers the exit code."""
    configure(settings, "reconciler")

    async def main(stop: asyncio.Event) -> int:
        metrics = Metrics()
        database = await Database.open(settings, name="reconciler")
        redis = RedisDoor.open(settings, name="reconciler")
        try:
            process = Process(settings, database, redis, metrics, SYSTEM_CLOCK)
            checks = (watched_redis(redis, settings), watched_mysql(database))
            watch = SettingsWatch(settings, checks, log=log, metrics=metrics)

            def readiness() -> dict[str, str]:
                failure = process.failure
                if failure is None:
                    return watch.missing()
                store = failure.store if isinstance(failure, StoreUnavailable) else "stores"
                return {store: str(failure)} | watch.missing()

            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(serve(settings, readiness, metrics)),
                    tasks.create_task(watch.run()),
                ]
                await process.run(stop)
                for task in beside:
                    task.cancel()
        finally:
            await redis.close()
            await database.close()
        return 0

    return run_until_signal(main, settings)
