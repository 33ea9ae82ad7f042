"""Where the time goes: CPU per accepted operation of each process.

On a machine that others load as well, requests per second say little. The CPU that each process spends on one
operation says nearly the same there as on a quiet one.
"""

import time
from dataclasses import dataclass
from typing import Any

from loadtests.bench_processes import CpuReading
from loadtests.bench_rounds import Scatter, say
from loadtests.bench_system import Catalogue, System
from loadtests.bench_wrk import Load


@dataclass(frozen=True, slots=True)
class CpuRound:
    """One round: microseconds of CPU per accepted operation, and shares of one core while the load ran."""

    per_s: float
    us: dict[str, float]
    """By process; the worker's and MariaDB's work of after the round, until the backlog is empty, is in it."""
    core_shares: dict[str, float]
    """By process; `others` is what ran on the machine besides, `stolen` what the hypervisor took."""


async def measure_round(system: System, catalogue: Catalogue, load: Load) -> CpuRound:
    """Load, wait until MySQL has everything, and divide what was spent by what was accepted."""
    processes = system.processes()
    before, began = CpuReading.take(processes), time.monotonic()
    done = await system.load(catalogue, load)
    loaded, seconds = CpuReading.take(processes).since(before), time.monotonic() - began
    await system.until_drained()
    drained = CpuReading.take(system.processes()).since(before)
    spent = {**drained.by_name, "wrk": done.wrk_cpu_s}
    busy = {**loaded.by_name, "wrk": done.wrk_cpu_s}
    busy["others"] = max(0.0, loaded.machine_busy - sum(busy.values()))
    busy["stolen"] = loaded.machine_stolen
    return CpuRound(
        done.per_s,
        {name: 1e6 * cpu_s / done.accepted for name, cpu_s in spent.items()},
        {name: cpu_s / seconds for name, cpu_s in busy.items()},
    )


async def measure_cpu(system: System, load: Load, rounds: int) -> dict[str, Any]:
    """The part of the bench; says a table."""
    catalogue = await system.catalogue(load.keys)
    await system.load(catalogue, Load(1, load.connections, load.keys, load.script))
    await system.until_drained()
    taken: list[CpuRound] = []
    for number in range(1, rounds + 1):
        taken.append(await measure_round(system, catalogue, load))
        say(f"  {number}/{rounds} {taken[-1].per_s:9,.0f}/s")
    books = await system.check_books(catalogue)
    us = {name: Scatter.of([one.us[name] for one in taken]) for name in taken[0].us}
    shares = {name: Scatter.of([one.core_shares[name] for one in taken]) for name in taken[0].core_shares}
    say(f"  {'process':16} {'µs/operation':>12} {'lowest':>8} {'highest':>8} {'of a core':>10}")
    for name, scatter in sorted(us.items(), key=lambda each: -each[1].median):
        say(
            f"  {name:16} {scatter.median:12.1f} {scatter.lowest:8.1f} {scatter.highest:8.1f} {shares[name].median:10.0%}"
        )
    total = Scatter.of([sum(one.us.values()) for one in taken])
    say(f"  {'all':16} {total.median:12.1f} {total.lowest:8.1f} {total.highest:8.1f}")
    say(f"  {'(others)':16} {'':12} {'':8} {'':8} {shares['others'].median:10.0%}")
    return {
        "per_s": Scatter.of([one.per_s for one in taken]).as_json(0),
        "us_per_operation": {name: scatter.as_json(1) for name, scatter in us.items()} | {"all": total.as_json(1)},
        "core_shares": {name: scatter.as_json(2) for name, scatter in shares.items()},
        "books": books,
    }
