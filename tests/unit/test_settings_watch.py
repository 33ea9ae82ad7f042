"""The watch over settings: what it says, how often it says it, and when it asks again."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from kernel import settings_watch
from kernel.clock import Clock
from kernel.doctor import Finding, Severity, Status
from kernel.errors import StatementFailed, StockgateError, StoreUnavailable
from kernel.metrics import Metrics
from kernel.settings import Settings
from kernel.settings_watch import SettingsWatch, StoreCheck


def finding(name: str, found: str, status: Status, severity: Severity = Severity.DANGEROUS) -> Finding:
    return Finding(name, status, severity, found, "1", "because", "" if status is Status.OK else "mend it")


GOOD = finding("mysql.flush", "1", Status.OK)
BAD = finding("mysql.flush", "2", Status.WRONG)
AWAY = StoreUnavailable("mysql", "not_executed", "refused")


class StoppedClock(Clock):
    """Stands still until it is moved: nothing is asked again for the time alone."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Watched:
    """A watch over one made-up store whose answer and connection the test sets."""

    def __init__(self) -> None:
        self.answer: list[Finding] | StockgateError = [GOOD]
        self.connection = 1
        self.asked = 0
        self.clock = StoppedClock()
        self.metrics = Metrics()
        self.lines = LogCapture()
        log: Any = structlog.wrap_logger(None, processors=[self.lines], wrapper_class=structlog.BoundLogger)
        check = StoreCheck("mysql", self._check, lambda: self.connection)
        self.watch = SettingsWatch(Settings(), [check], log=log, metrics=self.metrics, clock=self.clock)

    async def _check(self) -> list[Finding]:
        self.asked += 1
        if isinstance(self.answer, StockgateError):
            raise self.answer
        return self.answer

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                await asyncio.sleep(0)

    async def ask_again(self) -> None:
        """Let so much time pass that it is asked once more."""
        before = self.asked
        self.clock.seconds += 3_600
        await self.until(lambda: self.asked > before)
        await asyncio.sleep(0)

    def told(self) -> list[tuple[str, str]]:
        return [(line["log_level"], line["event"]) for line in self.lines.entries]

    @property
    def gauge(self) -> float | None:
        return self.metrics.registry.get_sample_value("stockgate_dangerous_settings", {"store": "mysql"})


@asynccontextmanager
async def watching(monkeypatch: pytest.MonkeyPatch, answer: list[Finding] | StockgateError) -> AsyncGenerator[Watched]:
    monkeypatch.setattr(settings_watch, "LOOK_S", 0.001)
    watched = Watched()
    watched.answer = answer
    assert watched.watch.missing() == {"mysql.settings": "not asked yet"}
    assert not watched.watch.safe("mysql")
    task = asyncio.create_task(watched.watch.run())
    try:
        await watched.until(lambda: watched.asked == 1)
        await asyncio.sleep(0)
        yield watched
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_danger_is_told_once_and_heals_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(monkeypatch, [BAD]) as watched:
        for _ in range(3):
            await watched.ask_again()
        assert watched.watch.missing() == {"mysql.flush": "2, must be 1: mend it"}
        assert (watched.watch.safe("mysql"), watched.gauge) == (False, 1)
        assert watched.told() == [("error", "dangerous_setting")]
        watched.answer = [GOOD]
        await watched.ask_again()
        assert watched.watch.missing() == {}
        assert (watched.watch.safe("mysql"), watched.gauge) == (True, 0)
        assert watched.told() == [("error", "dangerous_setting"), ("info", "setting_mended")]


async def test_a_store_that_is_away_leaves_what_it_said_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(monkeypatch, AWAY) as watched:
        assert watched.watch.missing() == {"mysql.settings": str(AWAY)}
        watched.answer = [BAD]
        await watched.ask_again()
        watched.answer = AWAY
        await watched.ask_again()
        assert list(watched.watch.missing()) == ["mysql.flush"]
        watched.answer = [GOOD]
        await watched.ask_again()
        watched.answer = AWAY
        await watched.ask_again()
        assert watched.watch.missing() == {}
        assert watched.watch.safe("mysql")


async def test_warnings_and_what_is_unknown_keep_nobody_from_being_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    soft = [
        finding("mysql.wait", "29 s", Status.WRONG, Severity.WARNING),
        finding("mysql.migrations", "not told", Status.UNKNOWN),
    ]
    async with watching(monkeypatch, soft) as watched:
        await watched.ask_again()
        assert (watched.watch.missing(), watched.watch.safe("mysql"), watched.gauge) == ({}, True, 0)
        assert watched.told() == 2 * [("warning", "setting")]


async def test_a_clock_that_is_wrong_makes_no_process_ready_and_stops_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with watching(monkeypatch, [GOOD, finding("clock.mysql", "+9000 ms", Status.WRONG)]) as watched:
        assert list(watched.watch.missing()) == ["clock.mysql"]
        assert watched.watch.safe("mysql")


async def test_a_new_connection_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(monkeypatch, [GOOD]) as watched:
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert watched.asked == 1, "its time has not come"
        watched.connection += 1
        await watched.until(lambda: watched.asked == 2)


async def test_what_nobody_foresaw_is_logged_and_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with watching(monkeypatch, StatementFailed(1193, "unknown variable")) as watched:
        await watched.ask_again()
        assert list(watched.watch.missing()) == ["mysql.settings"]
        assert watched.told() == [("error", "settings_not_read")]
        watched.answer = [GOOD]
        await watched.ask_again()
        assert watched.watch.missing() == {}
