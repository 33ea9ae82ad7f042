"""The whole HTTP contract against its own document, by schemathesis: all its checks, sequences of calls along the links.

It runs in processes of its own and speaks to a gateway of this one, on real servers. Two keys of different scopes go over
what they may do with many examples; each goes over what it may not do, and nobody's key over everything, with fewer, for
there every call ends the same way.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.contract import contract
from gateway.openapi import tag_of
from stockgate.servers import Servers
from tests.integration.http_world import HttpWorld, held_open

# Each run is bounded; the fixture begins when the first test does.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]

EXAMPLES = 300
EXAMPLES_REFUSED = 10
SETTINGS = """
color = false
workers = 1
continue-on-failure = true
# A test draws anew each time, and says which seed failed.
hooks = "{hooks}"
warnings = false
base-url = "{url}"
[cache]
enabled = false
[output.sanitization]
enabled = false
[generation]
no-shrink = true
database = "none"
# The tool's own list, and 413: a body may be too large before anybody looks whether it is right.
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]
# Values out of answers make the search end early now and then, after few examples; what exists is told below instead.
[phases.fuzzing.extra-data-sources]
responses = false
[dictionaries.keys]
values = {keys}
[dictionaries.orders]
values = {orders}
[parameters]
# Half of the lines name a key that exists, half of the calls an order: otherwise nearly all would be refused for that.
"body.lines[*].inventory_key" = {{ dictionary = "keys", probability = 0.5 }}
"body.inventory_keys[*]" = {{ dictionary = "keys", probability = 0.5 }}
"path.key" = {{ dictionary = "keys", probability = 0.5 }}
"path.order_id" = {{ dictionary = "orders", probability = 0.5 }}
"body.operations[*].order_id" = {{ dictionary = "orders", probability = 0.2 }}
"""
KEYS = ("sku 1", "sku{2}/x", "sku-3")
ORDERS = tuple(f"order/{number}" for number in range(40))
ORDER_CALLS = ("reservations", "operations")
STOCK_CALLS = ("inventory", "ops", "health", "metrics")
MODE_CALLS = ("mode",)
"""In a run of their own: who tries them out takes the shard away from everybody else again and again."""


@dataclass(frozen=True)
class Run:
    """One run of schemathesis: with whose key, over the calls with these tags."""

    caller: str | None
    tags: tuple[str, ...]
    examples: int
    phases: str


RUNS: Mapping[str, Run] = {
    "orders": Run("orders", ORDER_CALLS, EXAMPLES, "coverage,fuzzing,stateful"),
    "stock": Run("stock", STOCK_CALLS, EXAMPLES, "coverage,fuzzing,stateful"),
    "orders key elsewhere": Run("orders", (*STOCK_CALLS, *MODE_CALLS), EXAMPLES_REFUSED, "coverage,fuzzing"),
    "stock key elsewhere": Run("stock", ORDER_CALLS, EXAMPLES_REFUSED, "coverage,fuzzing"),
    "no key": Run(None, (*ORDER_CALLS, *STOCK_CALLS, *MODE_CALLS), EXAMPLES_REFUSED, "coverage,fuzzing"),
    "mode": Run("stock", MODE_CALLS, EXAMPLES, "coverage,fuzzing"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[HttpWorld]:
    async with held_open(servers, tmp_path_factory.mktemp("contract")) as opened:
        for key in KEYS:
            await opened.stocked(1_000_000, key)
        for number, order_id in enumerate(ORDERS):
            await opened.reserved(KEYS[number % len(KEYS)], 1, order_id=order_id)
        yield opened


async def schemathesis(world: HttpWorld, run: Run, directory: Path) -> dict[str, Any]:
    """Run it; its report. Fails if anything was found, or if less was tried than was asked for."""
    directory.mkdir()
    settings = directory / "schemathesis.toml"
    hooks = Path(__file__).with_name("contract_hooks.py")
    settings.write_text(SETTINGS.format(hooks=hooks, url=world.url, keys=json.dumps(KEYS), orders=json.dumps(ORDERS)))
    key = ["-H", f"Authorization: Bearer {world.keys[run.caller]}"] if run.caller else []
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("schemathesis"),
        *("--config-file", settings, "run", f"{world.url}/openapi.json", "--checks", "all", *key),
        *("--phases", run.phases, "--max-examples", str(run.examples)),
        *(f"--include-tag={tag}" for tag in run.tags),
        *("--report", "json", "--report-json-path", directory / "report.json"),
        cwd=directory,
        # The hooks import our limits; nothing here goes through a proxy.
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "NO_PROXY": "*"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    # What went wrong stands at the end.
    assert process.returncode == 0, output[-6_000:]
    report = json.loads((directory / "report.json").read_text())
    meant = [one for one in contract("0") if tag_of(one.template) in run.tags]
    assert report["operations"]["selected"] == report["operations"]["tested"] == len(meant)
    # A call without a body and without names has not that many forms.
    assert report["test_cases"]["generated"] >= run.examples * sum(one.takes is not None for one in meant)
    return report


async def test_every_call_is_as_its_document_says(world: HttpWorld, tmp_path: Path) -> None:
    """The two great runs beside each other: each waits for the gateway more than it computes."""
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(schemathesis(world, RUNS[name], tmp_path / name)) for name in ("orders", "stock")]
    for run in runs:
        report = run.result()
        assert {report["phases"][phase]["status"] for phase in ("coverage", "fuzzing", "stateful")} == {"success"}


@pytest.mark.parametrize("name", ["orders key elsewhere", "stock key elsewhere", "no key"])
async def test_a_call_without_its_scope_is_refused_as_its_document_says(
    world: HttpWorld, tmp_path: Path, name: str
) -> None:
    report = await schemathesis(world, RUNS[name], tmp_path / "run")
    assert {report["phases"][phase]["status"] for phase in ("coverage", "fuzzing")} == {"success"}


async def test_the_calls_on_the_mode_are_as_their_document_says(world: HttpWorld, tmp_path: Path) -> None:
    """The last one here: it leaves the shard in whichever mode it comes to."""
    report = await schemathesis(world, RUNS["mode"], tmp_path / "run")
    assert {report["phases"][phase]["status"] for phase in ("coverage", "fuzzing")} == {"success"}
