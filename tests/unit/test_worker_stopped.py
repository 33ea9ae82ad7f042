"""A worker whose shard has stopped waits for the row to change, whatever MySQL says meanwhile."""

import asyncio
from typing import Any, cast

import pytest

from inventory.sequence import LockedShard
from kernel.clock import SYSTEM_CLOCK
from kernel.errors import Retryable, StatementFailed, StoreUnavailable
from kernel.logs import get_logger
from kernel.metrics import Metrics
from kernel.mysql_door import Database
from kernel.settings import Settings
from persist_worker import main

HALTED = LockedShard(0, "hot", 1, 1, 1, 5, "d", 0, 0, 0, 0, 0, "", 0, "FORK", "why")


class Troubled:
    """Fails in every way first, then shows the row of a later term."""

    def __init__(self) -> None:
        self.failures: list[Exception] = [
            StoreUnavailable("mysql", "not_executed"),
            Retryable(1969, "max_statement_time exceeded"),
            StatementFailed(1146, "no such table"),
        ]

    async def fetch_all(self, _statement: object, _params: object) -> list[tuple[Any, ...]]:
        if self.failures:
            raise self.failures.pop()
        return [tuple(HALTED._replace(term=2))]


async def test_no_failure_of_a_reading_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "STOPPED_POLL_S", 0.01)
    database = Troubled()
    worker = main.ShardWorker(Settings(), 0, cast("Database", database), Metrics(), SYSTEM_CLOCK, get_logger())
    async with asyncio.timeout(5):
        await worker._wait_for_change(HALTED, asyncio.Event())
    assert not database.failures
