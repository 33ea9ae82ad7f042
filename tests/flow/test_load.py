"""`make load` as a person would type it: real users on a real stack, books that balance, budgets that decide the exit code."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest

from stockgate.servers import Servers
from tests.flow.world import World

BUDGETS = Path(__file__).parents[2] / "loadtests" / "budgets.toml"
USERS, REQUESTS = "8", "100"
"""Runs end by count: on a busy machine they take longer and do the same."""
SECONDS_MAX = "60"
UNREACHABLE_PER_S = 1_000_000
LIMIT_S = 110.0


def small_budgets(*, too_fast: str) -> str:
    """The real budgets without what depends on the machine or on a long run; one scenario can never reach its rate."""
    text = re.sub(r"\{[^}]*p50_ms[^}]*\}", "{ rare = true }", BUDGETS.read_text())
    text = re.sub(r"\b(requests_per_s_min|given_up_min) = \d+", r"\1 = 0", text)
    text = re.sub(r"\breplays_min = \d+", "replays_min = 1", text)
    text = re.sub(r"units_per_user = \d+", "units_per_user = 1", text)
    head, mark, tail = text.partition(f"[{too_fast}.total]")
    assert mark
    return head + mark + tail.replace("requests_per_s_min = 0", f"requests_per_s_min = {UNREACHABLE_PER_S}", 1)


@pytest.fixture
async def world(servers: Servers, tmp_path: Path) -> AsyncGenerator[World]:
    """A stack that describes itself as `stockgate up` does."""
    async with World(servers, tmp_path, gateways=1) as world:
        (tmp_path / "stack.json").write_text(json.dumps({"gateway": world.gateways[0].url}))
        (tmp_path / "keys.json").write_text(json.dumps(world.keys))
        yield world


async def start_load(world: World, scenario: str, *arguments: str) -> asyncio.subprocess.Process:
    (world.directory / "budgets.toml").write_text(small_budgets(too_fast="operators"))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtests.load", scenario, "--run-dir", str(world.directory), "--json"),
        *("--budgets", str(world.directory / "budgets.toml"), "--users", USERS, *arguments),
        *("--duration", SECONDS_MAX, "--requests", REQUESTS),
        env={**os.environ, "COLUMNS": "200"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def until_told(process: asyncio.subprocess.Process, pattern: str) -> str:
    """What the first matching line on standard error says."""
    assert process.stderr
    told: list[str] = []
    async with asyncio.timeout(LIMIT_S):
        async for line in process.stderr:
            told.append(line.decode())
            if found := re.search(pattern, told[-1]):
                return found[1]
    raise AssertionError(f"it never said {pattern}:\n{''.join(told)}")


async def finish(process: asyncio.subprocess.Process) -> tuple[Mapping[str, Any], str]:
    """The object on the last line of standard output, and everything on standard error."""
    try:
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert out, err.decode()
    return json.loads(out.splitlines()[-1]), err.decode()


async def test_scenarios_balance_their_books_and_budgets_decide(world: World) -> None:
    process = await start_load(world, "all")
    said, err = await finish(process)
    scenarios = said["scenarios"]
    assert list(scenarios) == ["order_service", "flash_sale", "retry_storm", "operators"]
    for name in ("order_service", "flash_sale", "retry_storm"):
        assert scenarios[name]["ok"], err
    # The one with a rate that nothing reaches fails by that alone, and with it the whole.
    assert scenarios["operators"]["failed"] == ["total requests_per_s"], err
    assert (said["ok"], process.returncode) == (False, 1)
    assert scenarios["retry_storm"]["replays"] > 0
    assert scenarios["flash_sale"]["by_name"]["confirm"]["requests"] == int(USERS), "exactly what there was is sold"
    asked = set(scenarios["operators"]["by_name"])
    # Each kind of operator was there; what they happened to do first is theirs.
    assert "audit" in asked
    assert asked & {"status", "explain", "reconcile"}
    assert asked & {"adjust", "lock", "query_inventory", "read_inventory"}


async def test_locusts_page_can_be_opened_and_an_interrupt_judges(world: World) -> None:
    process = await start_load(world, "flash_sale", "--web")
    try:
        page = await until_told(process, r"Locust's page is (http://\S+)")

        async def over() -> bool:
            return (await world.http.get(f"{page}/stats/requests")).json()["state"] == "stopped"

        await world.until(over, LIMIT_S, "the run on Locust's page is over")
        assert "Locust" in (await world.http.get(page)).text
        process.send_signal(signal.SIGINT)
        said, err = await finish(process)
    finally:
        if process.returncode is None:
            process.kill()
    assert (said["ok"], process.returncode) == (True, 0), err
