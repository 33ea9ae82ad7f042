"""The places where a process may die or stand still, and how one repetition is played.

A repetition: arm one process, load from another process, wait until it is gone (or stands), bring the system back as an
operator's supervisor would, let the load go on, end it, wait for quiet, check every invariant from the callers' history.
"""

import asyncio
import json
import random
import secrets
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stockgate.demo_history import OrderHistory
from stockgate.processes import Child, log_tail
from tests.flow.checks import check_all
from tests.flow.load import read_history
from tests.flow.world import NotReachedError, Role, World

STOCK = {"crash-a": 400, "crash-b": 100_000, "crash/c {x}": 100_000, "crash-d": 100_000}
ORDERS_PER_S = 210
"""Their reserves alone are more than 200 requests/s; settling calls and duplicates come on top."""
CALLS_PER_S_MIN = 200
PAUSE_S = 20.0
REACH_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Case:
    """A named place. `nth` bounds how often it is passed before the process ends there; `trigger` makes it be passed."""

    point: str
    role: Literal["gateway", "leader", "worker"]
    trigger: Literal["load", "takeover", "rebuild"] = "load"
    nth_max: int = 60


CASES = (
    Case("gateway.before_call", "gateway"),
    Case("gateway.after_call", "gateway"),
    Case("gateway.before_answer", "gateway"),
    Case("leader.before_publish", "leader"),
    Case("leader.after_publish", "leader"),
    Case("leader.after_confirm", "leader"),
    Case("leader.before_naming", "leader"),
    Case("leader.after_lock", "leader", "takeover"),
    Case("leader.after_term_row", "leader", "takeover"),
    Case("leader.after_term_sent", "leader", "takeover"),
    Case("leader.after_take_over", "leader", "takeover"),
    Case("leader.after_fence", "leader", "rebuild"),
    Case("leader.before_close", "leader", "rebuild"),
    Case("leader.after_close_sent", "leader", "rebuild"),
    Case("leader.after_draw", "leader", "rebuild"),
    Case("leader.after_row_hot", "leader", "rebuild"),
    Case("leader.after_unfence", "leader", "rebuild"),
    Case("worker.before_commit", "worker"),
    Case("worker.after_commit", "worker"),
    Case("worker.after_ack", "worker"),
)


class Load:
    """The load process of one repetition."""

    def __init__(self, world: World, stock: dict[str, int], seed: int, seconds: float) -> None:
        self.directory = world.directory / "load"
        self.directory.mkdir(exist_ok=True)
        run = secrets.token_hex(4)
        self.spec_path = self.directory / f"{run}.spec.json"
        self.history_path = self.directory / f"{run}.history.json"
        self.child = Child(f"load-{run}", world.directory / "log" / "load.log")
        spec = {
            "urls": [role.url for role in world.gateways],
            "key": world.keys["orders"],
            "stock": stock,
            "orders_per_s": ORDERS_PER_S,
            "seconds": seconds,
            "seed": seed,
            "run": run,
        }
        self.spec_path.write_text(json.dumps(spec))

    def start(self) -> None:
        self.child.spawn([sys.executable, "-m", "tests.flow.load", str(self.spec_path), str(self.history_path)])

    def answered(self) -> int:
        """Orders whose reserve has been answered so far."""
        try:
            return int(self.history_path.with_suffix(".progress").read_text().split()[1])
        except (FileNotFoundError, IndexError):
            return 0

    async def until_answered(self, count: int, limit_s: float = 30.0) -> None:
        """Wait until so many more orders have been answered: the system gives correct answers again."""
        wanted = self.answered() + count
        deadline = time.monotonic() + limit_s
        while self.answered() < wanted:
            if not self.child.alive() or time.monotonic() > deadline:
                raise NotReachedError(f"no {count} more answers within {limit_s} s:\n{log_tail(self.child.log_path)}")
            await asyncio.sleep(0.05)

    async def finish(self, limit_s: float = 60.0) -> None:
        """Ask the load to end; it finishes what it began."""
        await self.child.kill(signal.SIGTERM)
        async with asyncio.timeout(limit_s):
            code = await self.child.wait()
        if code != 0:
            raise NotReachedError(f"the load ended with {code}:\n{log_tail(self.child.log_path)}")


async def prepare(world: World) -> dict[str, int]:
    """The catalogue of a world, enough for many repetitions; answers its stock."""
    for key, quantity in STOCK.items():
        await world.create_key(key, quantity)
    return dict(STOCK)


async def play(
    world: World, case: Case, seed: int, action: Literal["kill", "stop"], history: "History"
) -> Counter[str]:
    """One repetition; raises AssertionError with the reason when an invariant does not hold."""
    rng = random.Random(seed)
    victim = {"gateway": world.gateways[0], "leader": world.leaders[0], "worker": world.worker}[case.role]
    nth = rng.randint(1, case.nth_max) if case.trigger == "load" else 1
    failpoint = f"{case.point}={action}@{nth}"
    load = Load(world, STOCK, seed, seconds=120)
    if case.trigger == "takeover":
        load.start()
        await load.until_answered(20)
        world.leaders[1].spawn(failpoint)
        await asyncio.sleep(rng.random() * 0.3)
        await victim.kill()
        victim, standby = world.leaders[1], world.leaders[0]
    else:
        await victim.stop()
        victim.spawn(failpoint)
        if case.role == "gateway":
            await world.ready()
        load.start()
        standby = world.leaders[1]
        if case.trigger == "rebuild":
            await load.until_answered(20)
            await world.query(
                "UPDATE shard SET rebuild_wanted = rebuild_wanted + 1, rebuild_reason = 'test' WHERE shard_no = 0"
            )
    await _meet(world, case, victim, standby, action)
    await load.until_answered(60, limit_s=15.0 if action == "stop" else 10.0)
    await load.finish()
    orders, counters = read_history(load.history_path)
    history.add(orders, counters)
    if case.role == "leader":
        await _one_leader(world)
    await world.second_worker.stop()
    return await check_all(world, history.orders, STOCK)


async def _meet(world: World, case: Case, victim: Role, standby: Role, action: Literal["kill", "stop"]) -> None:
    """Wait for the place, and do what a supervisor does: start the dead again, let a standby take over."""
    if action == "kill":
        await victim.died(REACH_LIMIT_S)
        (standby if case.role == "leader" else victim).spawn()
        return
    await victim.stopped(REACH_LIMIT_S)
    if case.role == "leader":
        standby.spawn()
    elif case.role == "worker":
        world.second_worker.spawn()
    await asyncio.sleep(PAUSE_S)
    await victim.kill(signal.SIGCONT)


async def _one_leader(world: World) -> None:
    """Leave exactly the first leader process running, for the next repetition."""
    await world.leaders[1].stop()
    if not world.leaders[0].child.alive():
        world.leaders[0].spawn()


class History:
    """What all load processes of one world were told, and how hard they asked."""

    def __init__(self) -> None:
        self.orders: dict[str, OrderHistory] = {}
        self.calls_per_s: list[float] = []

    def add(self, orders: dict[str, OrderHistory], counters: dict[str, Any]) -> None:
        self.orders.update(orders)
        assert not counters["surprises"], counters["surprises"][:5]
        self.calls_per_s.append(counters["calls_per_s"])


def report_line(case: Case, action: str, seed: int, counts: Counter[str], path: Path) -> None:
    """Append one line to the report of the suite."""
    with path.open("a") as report:
        report.write(json.dumps({"point": case.point, "action": action, "seed": seed, **counts}) + "\n")
