"""Keeps asking whether the servers are set up safely, and keeps a process from being ready while one is not.

Each store is asked at the start, then every `settings_check_s`, soon after a new connection to it was made, and more often
while something is wrong, so that a mended setting heals the process by itself. A store that is away tells nothing: what
it said last stands, and that it is away is told elsewhere.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final, NamedTuple

from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.doctor import Finding, Status
from kernel.errors import StockgateError, StoreUnavailable
from kernel.logs import Logger
from kernel.metrics import Metrics
from kernel.settings import Settings

AGAIN_S: Final = 5.0
"""Until the next look while a store is away or something is wrong."""
LOOK_S: Final = 1.0
"""How often it is seen whether a store was connected anew; this asks nobody."""
CHECK_LIMIT_S: Final = 30.0
"""All questions to one store together; each has its door's own limit."""


class StoreCheck(NamedTuple):
    """How one store is checked."""

    store: str
    check: Callable[[], Awaitable[list[Finding]]]
    """Raises StockgateError where the store could not be asked."""
    connections: Callable[[], int]
    """Any number that changes when this process has connected to the store anew."""


class SettingsWatch:
    """What is known about the settings of the stores. `run` must be running; without it nothing is known, ever."""

    def __init__(
        self,
        settings: Settings,
        checks: Iterable[StoreCheck],
        *,
        log: Logger,
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._interval_s = settings.settings_check_s
        self._checks = tuple(checks)
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._unasked = {check.store: "not asked yet" for check in self._checks}
        self._unread: dict[str, str] = {}
        self._findings: dict[str, dict[str, Finding]] = {check.store: {} for check in self._checks}
        self._safe = dict.fromkeys(self._unasked, False)

    def safe(self, store: str) -> bool:
        """Whether the store was asked at least once and nothing dangerous is known of itself; its clock is another matter."""
        return self._safe[store]

    def missing(self) -> dict[str, str]:
        """What keeps the process from being ready: checks by name, what they found and how to mend it."""
        return {
            **{f"{store}.settings": reason for store, reason in self._unasked.items()},
            **{finding.name: finding.sentence for finding in self._all() if finding.dangerous},
        }

    async def run(self) -> None:
        """Ask for ever. Ends only by cancellation."""
        async with asyncio.TaskGroup() as group:
            for check in self._checks:
                group.create_task(self._watch(check), name=f"settings of {check.store}")

    async def _watch(self, check: StoreCheck) -> None:
        while True:
            calm = await self._ask(check)
            # Read after the check: it may have made connections of its own.
            connections = check.connections()
            next_s = self._clock.monotonic() + (self._interval_s if calm else min(AGAIN_S, self._interval_s))
            while (left_s := next_s - self._clock.monotonic()) > 0 and check.connections() == connections:
                await asyncio.sleep(min(LOOK_S, left_s))

    async def _ask(self, check: StoreCheck) -> bool:
        """Ask one store; False where it must be asked again soon."""
        try:
            async with asyncio.timeout(CHECK_LIMIT_S):
                findings = await check.check()
        except (StockgateError, TimeoutError) as failure:
            if check.store in self._unasked:
                self._unasked[check.store] = str(failure) or "no answer in time"
            if not isinstance(failure, StoreUnavailable) and self._unread.get(check.store) != str(failure):
                # A store that is away is told elsewhere; this is a question that it could not answer.
                self._unread[check.store] = str(failure)
                self._log.error("settings_not_read", store=check.store, reason=str(failure) or "no answer in time")
            return False
        self._unread.pop(check.store, None)
        self._unasked.pop(check.store, None)
        self._take(check.store, findings)
        return all(finding.status is not Status.WRONG for finding in findings)

    def _take(self, store: str, findings: list[Finding]) -> None:
        """Keep what was found, and tell what differs from the last time."""
        before, now = self._findings[store], {finding.name: finding for finding in findings}
        for name, finding in now.items():
            earlier = before.get(name)
            if earlier is not None and (earlier.status, earlier.found) == (finding.status, finding.found):
                continue
            self._tell(finding, earlier)
        self._findings[store] = now
        self._safe[store] = not any(finding.dangerous and name.startswith(f"{store}.") for name, finding in now.items())
        self._metrics.dangerous_settings.labels(store).set(sum(finding.dangerous for finding in findings))

    def _tell(self, finding: Finding, earlier: Finding | None) -> None:
        about = {"check": finding.name, "found": finding.found, "wanted": finding.wanted}
        if finding.dangerous:
            self._log.error("dangerous_setting", **about, why=finding.why, mend=finding.mend)
        elif finding.status is not Status.OK:
            self._log.warning("setting", **about, status=finding.status.value, why=finding.why, mend=finding.mend)
        elif earlier is not None and earlier.status is not Status.OK:
            self._log.info("setting_mended", **about)
        elif finding.name == "redis.run_id":
            self._log.info("redis_run", run_id=finding.found, before=earlier.found if earlier else "")

    def _all(self) -> Iterator[Finding]:
        return (finding for findings in self._findings.values() for finding in findings.values())
