"""Every crash point once, and a sample of pauses. `make crash` plays each of them many times."""

import os
import zlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from stockgate.servers import Servers
from tests.flow.crash_cases import CALLS_PER_S_MIN, CASES, Case, History, play, prepare, report_line
from tests.flow.world import World

KILLS_FULL = int(os.environ.get("CRASH_REPETITIONS", "20"))
SEED = int(os.environ.get("CRASH_SEED", "1"))
PAUSE_SAMPLE = ("gateway.after_call", "leader.after_publish", "worker.before_commit")
REPORT = Path("crash-report.jsonl")


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def history() -> History:
    """What every load of this module was told: the stock is shared, so the judgement covers all of it each time."""
    return History()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with World(servers, tmp_path_factory.mktemp("crashes"), gateways=2, leaders=2) as world:
        await prepare(world)
        yield world


def seed_of(case: Case, repetition: int) -> int:
    return zlib.crc32(f"{SEED}/{case.point}/{repetition}".encode())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.point)
async def test_nothing_is_lost_when_a_process_dies(world: World, history: History, case: Case) -> None:
    counts = await play(world, case, seed_of(case, 0), "kill", history)
    assert counts["reserved"] > 0, "a run without one accepted order shows nothing"


@pytest.mark.parametrize("case", [case for case in CASES if case.point in PAUSE_SAMPLE], ids=lambda case: case.point)
async def test_nothing_is_lost_when_a_process_stands_still(world: World, history: History, case: Case) -> None:
    counts = await play(world, case, seed_of(case, 0), "stop", history)
    assert counts["reserved"] > 0, "a run without one accepted order shows nothing"


@pytest.mark.crash_full
@pytest.mark.parametrize("action", ["kill", "stop"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.point)
async def test_every_crash_point_many_times(world: World, history: History, case: Case, action: str) -> None:
    for repetition in range(KILLS_FULL if action == "kill" else 1):
        seed = seed_of(case, repetition)
        counts = await play(world, case, seed, "kill" if action == "kill" else "stop", history)
        report_line(case, action, seed, counts, REPORT)
    median = sorted(history.calls_per_s)[len(history.calls_per_s) // 2]
    if action == "kill":
        assert median >= CALLS_PER_S_MIN, f"the load was only {median:.0f} calls/s"
