"""The reconciler's process: a pass every `reconcile_interval_s`, and the comparisons that were asked for."""

import asyncio
from contextlib import suppress

from inventory import reconcile_tasks
from inventory.audit import audit
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
AUDIT_TIMEOUT_MS = 60_000
FAILURE_PAUSE_S = 1.0
FINISH_S = 3.0

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
        """Compare until told to stop; a store that is away is waited for.

        A comparison that is under way then has `FINISH_S`. Over many keys it takes longer, and it can be broken off
        anywhere: what was repaired stays repaired, a task that was begun is taken up again by whoever comes next.
        """
        working, asked = asyncio.create_task(self._work(stop)), asyncio.create_task(stop.wait())
        try:
            await asyncio.wait((working, asked), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait((working,), timeout=FINISH_S)
        finally:
            asked.cancel()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
        if not working.cancelled():
            working.result()

    async def _work(self, stop: asyncio.Event) -> None:
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
        self._count(findings)
        for key_class in KeyClass:
            gauge = self._metrics.reconcile_keys.labels(shard=str(shard), **{"class": key_class.value})
            gauge.set(findings.classes[key_class])
        self._metrics.stuck_keys.labels(shard).set(findings.stuck)
        self._metrics.reconcile_pass_timestamp_seconds.labels(shard).set(self._clock.now_ms() / 1000)
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
                self._count(findings)

    def _count(self, findings: Findings) -> None:
        for key_class in (KeyClass.DRIFTED, KeyClass.LOST):
            self._metrics.drift_found_total.labels(key_class.value).inc(findings.classes[key_class])
            self._metrics.drift_repaired_total.labels(key_class.value).inc(findings.repairs[key_class])


class Auditor:
    """Checks the invariants again and again, and shows what it found."""

    def __init__(
        self, settings: Settings, database: Database, redis: RedisDoor, metrics: Metrics, clock: Clock
    ) -> None:
        self._settings = settings
        self._database = database
        self._redis = redis
        self._metrics = metrics
        self._clock = clock

    async def run(self) -> None:
        """Audit every `audit_interval_s`, first after one; returns at once where that is 0."""
        while self._settings.audit_interval_s:
            await asyncio.sleep(self._settings.audit_interval_s)
            for shard in range(self._settings.shards):
                try:
                    await self._audit(shard)
                except StockgateError as failure:
                    # An audit that could not look proves nothing: what the last one found stays, and gets old.
                    log.warning("audit interrupted", shard=shard, reason=str(failure))

    async def _audit(self, shard: int) -> None:
        for check in await audit(self._database, self._redis, shard):
            self._metrics.audit_violations.labels(shard, check.name).set(len(check.violations))
            if check.violations:
                log.error("an invariant is violated", shard=shard, check=check.name, first=check.violations[0])
        self._metrics.audit_timestamp_seconds.labels(shard).set(self._clock.now_ms() / 1000)


def run(settings: Settings) -> int:
    """Run the reconciler until SIGTERM; answers the exit code."""
    configure(settings, "reconciler")

    async def main(stop: asyncio.Event) -> int:
        metrics = Metrics()
        metrics.describe("reconciler")
        database = await Database.open(settings, name="reconciler", metrics=metrics)
        # An audit reads whole tables: its statements take longer than any other.
        patient = settings.model_copy(update={"mysql_timeout_ms": AUDIT_TIMEOUT_MS})
        audit_database = await Database.open(patient, name="reconciler.audit", pool_max=1, metrics=metrics)
        redis, audit_redis = (
            RedisDoor.open(settings, name=name, metrics=metrics) for name in ("reconciler", "reconciler.audit")
        )
        try:
            process = Process(settings, database, redis, metrics, SYSTEM_CLOCK)
            checks = (watched_redis(redis, settings), watched_mysql(database))
            watch = SettingsWatch(settings, checks, log=log, metrics=metrics)

            def readiness() -> dict[str, str]:
                missing = watch.missing() | ({"reconciler": "shutting down"} if stop.is_set() else {})
                failure = process.failure
                if failure is None:
                    return missing
                store = failure.store if isinstance(failure, StoreUnavailable) else "stores"
                return {store: str(failure)} | missing

            async with asyncio.TaskGroup() as tasks:
                auditor = Auditor(settings, audit_database, audit_redis, metrics, SYSTEM_CLOCK)
                beside = [
                    tasks.create_task(serve(settings, readiness, metrics)),
                    tasks.create_task(watch.run()),
                    tasks.create_task(auditor.run()),
                ]
                await process.run(stop)
                for task in beside:
                    task.cancel()
        finally:
            for door in (redis, audit_redis):
                await door.close()
            for pool in (database, audit_database):
                await pool.close()
        return 0

    return run_until_signal(main, settings)
