"""A real Prometheus scrapes a running system: every panel shows something, no rule fails, and the pictures can be drawn."""

import asyncio
import itertools
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from inventory.events import WIRE_VERSION
from observability.dashboards import FOLDER
from observability.draw import Drawn, draw, read_dashboard, read_panels
from observability.scrape import Prometheus, PrometheusServer, Target
from stockgate.servers import Servers
from tests.flow.asking import move, open_queue, reserve
from tests.flow.world import World

SCRAPE_MS: Final = 200
RATE: Final = "4s"
LIMIT_S: Final = 60.0
CALLERS: Final = 6

EMPTY_WHEN_WELL: Final = {
    "Alarms of the worker": "the worker reports none",
    "What is missing": "every process is ready",
    "Failures by store and code": "no store fails",
    "Next API key ends in": "no key has an end",
}
"""Panels without data while all is well, and why. The test provokes each of them afterwards."""

JOBS: Final = {
    "gateway-1": "stockgate-gateway",
    "gateway-2": "stockgate-gateway",
    "persist-worker": "stockgate-persist-worker",
    "reconciler": "stockgate-reconciler",
}


async def trade(world: World, stop: asyncio.Event) -> None:
    """A little of everything that order services do, until told to stop; refusals and repeats too."""

    async def one(number: int) -> None:
        gateway, order = number % 2, f"order-{number}"
        await reserve(world, order, (f"sku-{number % 5}", 1), gateway=gateway)
        await reserve(world, order, (f"sku-{number % 5}", 1), gateway=1 - gateway)
        await reserve(world, f"{order}-large", ("sku-short", 1_000), gateway=gateway)
        await move(world, order, "confirm" if number % 3 else "release", gateway=gateway)
        await world.get(f"/v1/reservations/{order}", gateway=gateway)

    async def caller(numbers: Iterator[int]) -> None:
        while not stop.is_set():
            await one(next(numbers))
            await asyncio.sleep(0.02)

    numbers = itertools.count()
    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(caller(numbers))


class Pages:
    """The dashboards over what this Prometheus has seen since `begin`."""

    def __init__(self, prometheus: Prometheus) -> None:
        self.prometheus = prometheus
        self.begin = time.time()
        self.boards = [read_dashboard(file) for file in sorted(FOLDER.glob("*.json"))]
        self.empty = {panel["title"] for board in self.boards for panel in board["panels"] if panel["type"] != "row"}
        """Titles of the panels of which a query has not given anything yet."""

    async def read(self, only: set[str] | None = None) -> list[tuple[Mapping[str, Any], list[Drawn]]]:
        """Every panel, or those with these titles, by dashboard."""
        end, read = time.time(), list[tuple[Mapping[str, Any], list[Drawn]]]()
        for board in self.boards:
            part = {**board, "panels": [panel for panel in board["panels"] if only is None or panel["title"] in only]}
            read.append((board, await read_panels(self.prometheus, part, self.begin, end, RATE)))
        return read

    async def until_empty_is(self, wanted: set[str]) -> None:
        """Ask until exactly these panels are empty: Prometheus needs some scrapes for a rate. What was once seen stays."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            for _, panels in await self.read(self.empty):
                self.empty -= {
                    drawn.panel["title"] for drawn in panels if drawn.answered == len(drawn.panel["targets"])
                }
            assert wanted <= self.empty, f"not empty though all is well: {wanted - self.empty}"
            if self.empty == wanted:
                return
            assert time.monotonic() < deadline, f"no data in {self.empty - wanted}"
            await asyncio.sleep(0.2)


async def test_every_panel_shows_what_a_real_prometheus_scraped(servers: Servers, tmp_path: Path) -> None:
    settings = {"STOCKGATE_AUDIT_INTERVAL_S": "1", "STOCKGATE_RECONCILE_INTERVAL_S": "0.5"}
    async with World(servers, tmp_path, metrics_ports=True, settings=settings) as world:
        targets = [
            Target(JOBS[role.name], role.name, f"127.0.0.1:{role.metrics_port}")
            for role in world.roles
            if role.name in JOBS
        ]
        assert len(targets) == len(JOBS)
        server = PrometheusServer(tmp_path / "prometheus", targets, world.keys["metrics"], interval_ms=SCRAPE_MS)
        prometheus = Prometheus(server.url)
        stop = asyncio.Event()
        for key in [*(f"sku-{number}" for number in range(5)), "sku-short"]:
            await world.create_key(key, 100)
        await server.start()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(trade(world, stop))
                pages = Pages(prometheus)
                await pages.until_empty_is(set(EMPTY_WHEN_WELL))
                await nothing_fires(prometheus)
                await provoke(world)
                await pages.until_empty_is(set())
                stop.set()
            await the_alarm_is_about_to_fire(prometheus)
            for board, panels in await pages.read():
                path = tmp_path / f"{board['uid']}.png"
                await asyncio.to_thread(draw, board, panels, path)
                assert path.read_bytes().startswith(b"\x89PNG")
                assert path.stat().st_size > 50_000
        finally:
            await prometheus.close()
            await server.stop()


async def nothing_fires(prometheus: Prometheus) -> None:
    """All is well: every rule can be evaluated, every process is scraped, and no alert fires."""
    groups = (await prometheus.ask("rules"))["groups"]
    unwell = {
        rule["name"]: rule.get("lastError") for group in groups for rule in group["rules"] if rule["health"] != "ok"
    }
    assert not unwell
    assert {labels["instance"]: value for labels, value in await prometheus.now("up")} == dict.fromkeys(JOBS, 1.0)
    assert {labels["instance"]: value for labels, value in await prometheus.now("stockgate_ready")} == dict.fromkeys(
        JOBS, 1
    )
    assert await prometheus.now('ALERTS{alertstate="firing"}') == []


async def provoke(world: World) -> None:
    """Make happen what the panels that are empty in good times are for."""
    # A key that ends, in a file that is read while the processes run.
    path = world.directory / "api_keys.json"
    keys = json.loads(path.read_text())
    keys[0]["expires_at"] = "2999-01-01T00:00:00Z"
    path.write_text(json.dumps(keys))
    # Connections that break under load.
    async with world.redis() as client:
        await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    # What a newer leader would write stops this worker with an alarm, and it is not ready then.
    async with open_queue(world) as queue:
        await queue.put(msgspec.msgpack.encode([WIRE_VERSION + 1]))


async def the_alarm_is_about_to_fire(prometheus: Prometheus) -> None:
    """The rule has seen what was provoked, at its next evaluation; it would fire after the time that it waits."""
    async with asyncio.timeout(LIMIT_S):
        while not (seen := await prometheus.now('ALERTS{alertname="StockgateWorkerAlarm"}')):
            await asyncio.sleep(0.2)
    assert {labels["shard"] for labels, _ in seen} == {"0"}
