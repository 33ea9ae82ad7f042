"""What shows only over a longer time: a minute near capacity, the worker's speed on a backlog, and memory."""

import asyncio
import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from client.failures import ClientError
from loadtests.bench_processes import resident_mb
from loadtests.bench_rounds import Scatter, say
from loadtests.bench_system import BenchError, System, until_ended
from loadtests.bench_wrk import Load

SUSTAINED_SHARE = 0.9
OPEN_LOOP_CONNECTIONS = 256
"""More than the rate times any usual latency: an order rarely waits for a free connection."""
SAMPLE_S = 0.5
MEMORY_LIMIT_S = 300.0
SETTLED_LIMIT_S = 20.0
WORKER_LIMIT_S = 300.0


@contextlib.asynccontextmanager
async def beside(work: Coroutine[None, None, None]) -> AsyncGenerator[None]:
    """Let endless work run while the block does; raises what it raised."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


# --- a minute near capacity ---------------------------------------------------------------------------------------------


async def sustain(system: System, load: Load, *, sustained_s: float) -> dict[str, Any]:
    """Measure the capacity, load at 90 % of it, and look how long the backlog stays afterwards.

    The load is wrk again, with a schedule drawn in its script: a generator in Python would take so much of the same two
    cores that the capacity measured a moment before would no longer be there.
    """
    catalogue = await system.catalogue(load.keys)
    await system.load(catalogue, replace(load, seconds=2))
    capacity = await system.load(catalogue, load)
    await system.until_drained()
    rate = SUSTAINED_SHARE * capacity.per_s
    say(f"  capacity {capacity.per_s:,.0f}/s; now {rate:,.0f}/s for {sustained_s:.0f} s")
    paced = replace(load, seconds=sustained_s, connections=OPEN_LOOP_CONNECTIONS, script="paced")
    async with sampled_backlog(system) as backlog:
        done = await system.load(catalogue, paced, RATE=f"{rate:.1f}")
    drain_s = await system.until_drained()
    books = await system.check_books(catalogue)
    # Due by the end: answered, under way, and those whose time had come while no connection was free.
    due = done.accepted + done.figures["unanswered"] + done.figures["behind_s"] * rate
    latencies = {
        name.removesuffix("_us"): round(us / 1000, 2) for name, us in done.figures.items() if name.endswith("_us")
    }
    say(
        f"  {done.accepted / due:.1%} of what was due was answered; empty after {drain_s:.1f} s; latency from the intended time: p50 "
        f"{latencies['corrected_p50']:.1f} ms, p99 {latencies['corrected_p99']:.1f} ms"
    )
    return {
        "capacity_per_s": round(capacity.per_s),
        "asked_per_s": round(rate),
        "kept_share": round(done.accepted / due, 4),
        "seconds": round(done.seconds, 1),
        "drain_s": round(drain_s, 2),
        "backlog_entries": {"median": statistics.median(backlog), "highest": max(backlog)} if backlog else None,
        "unanswered_at_end": int(done.figures["unanswered"]),
        "behind_s": done.figures["behind_s"],
        "latency_ms": latencies,
        "books": books,
    }


@contextlib.asynccontextmanager
async def sampled_backlog(system: System) -> AsyncGenerator[list[int]]:
    """Entries that MySQL did not have yet, twice a second while the block runs."""
    samples: list[int] = []

    async def sample() -> None:
        while True:
            # Under full load a look may be refused or late: the next one comes soon.
            with contextlib.suppress(ClientError):
                entries = await system.backlog_entries()
                if entries is not None:
                    samples.append(entries)
            await asyncio.sleep(SAMPLE_S)

    async with beside(sample()):
        yield samples


# --- the worker alone ---------------------------------------------------------------------------------------------------


async def drain_backlog(folder: Path, *, events: int, rounds: int) -> dict[str, Any]:
    """The persist worker on a prepared backlog, by a program that knows how to prepare one."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.bench_worker", "backlog", "--json"),
        *("--events", str(events), "--rounds", str(rounds), "--folder", str(folder)),
        stdout=asyncio.subprocess.PIPE,
    )
    lines = (await until_ended(process, WORKER_LIMIT_S)).decode().splitlines()
    if process.returncode != 0 or not lines:
        raise BenchError(f"the worker's benchmark ended with {process.returncode}; its messages stand above")
    for line in lines[:-1]:
        say(f"  {line}")
    result = json.loads(lines[-1])
    runs: list[dict[str, Any]] = result["runs"]
    return {
        "events": result["events"],
        "events_per_s": Scatter.of([run["events"] / run["seconds"] for run in runs]).as_json(0),
        "cpu_us_per_event": {
            name: Scatter.of([run["cpu_us_per_event"][name] for run in runs]).as_json(1)
            for name in runs[0]["cpu_us_per_event"]
        },
    }


# --- memory -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident memory by process, in MB, when about so many operations had been done."""

    operations: float
    mb: dict[str, float]


async def measure_memory(system: System, load: Load, *, orders: int, operations: int) -> dict[str, Any]:
    """Bytes that an open order takes in Redis; then memory of the processes over many operations."""
    open_orders = await measure_open_orders(system, load, orders)
    catalogue = await system.catalogue(load.keys)
    samples: list[MemorySample] = []
    done, began = 0, time.monotonic()
    while done < operations:
        if time.monotonic() - began > MEMORY_LIMIT_S:
            raise BenchError(f"only {done:,} of {operations:,} operations were done within {MEMORY_LIMIT_S:.0f} s")
        async with sampled_memory(system) as (times, readings):
            round_began = time.monotonic()
            one = await system.load(catalogue, replace(load, script="operations"), OPERATIONS="100", CONFIRM="1")
            round_s = time.monotonic() - round_began
        samples += [
            MemorySample(done + one.accepted * min(1.0, (at - round_began) / round_s), mb)
            for at, mb in zip(times, readings, strict=True)
        ]
        done += one.accepted
        say(f"  {done:9,} operations  " + "  ".join(f"{name} {mb:.0f} MB" for name, mb in samples[-1].mb.items()))
        # Its own time for the worker: reserves are refused when it is too far behind.
        await system.until_drained()
    after = resident_mb(system.processes())
    return {
        "operations": done,
        "mb_after": {name: round(mb, 1) for name, mb in after.items()},
        "growth_mb_second_half": {
            name: round(growth(samples, name, operations / 2, operations), 2)
            for name in ("gateway-1", "persist-worker")
        },
        "samples": [
            {"operations": round(sample.operations), **{name: round(mb, 1) for name, mb in sample.mb.items()}}
            for sample in samples
        ],
        "open_orders": open_orders,
        "books": await system.check_books(catalogue),
    }


@contextlib.asynccontextmanager
async def sampled_memory(system: System) -> AsyncGenerator[tuple[list[float], list[dict[str, float]]]]:
    """Times (monotonic) and resident memory of gateway and worker, twice a second while the block runs."""
    processes = {name: pid for name, pid in system.processes().items() if name in {"gateway-1", "persist-worker"}}
    times: list[float] = []
    readings: list[dict[str, float]] = []

    async def sample() -> None:
        while True:
            times.append(time.monotonic())
            readings.append(resident_mb(processes))
            await asyncio.sleep(SAMPLE_S)

    async with beside(sample()):
        yield times, readings


def growth(samples: Sequence[MemorySample], process: str, first: float, last: float) -> float:
    """MB by which a process grew between two numbers of operations, by the line that fits its samples best.

    Raises BenchError with fewer than three samples, for then no line says anything.
    """
    points = [(sample.operations, sample.mb[process]) for sample in samples if first <= sample.operations <= last]
    if len(points) < 3:
        raise BenchError(f"only {len(points)} samples of memory between {first:,.0f} and {last:,.0f} operations")
    slope, _ = statistics.linear_regression(*zip(*points, strict=True))
    return slope * (last - first)


async def measure_open_orders(system: System, load: Load, orders: int) -> dict[str, Any]:
    """What each open one-line order adds to Redis' memory, without the log, whose length is bounded."""
    catalogue = await system.catalogue(load.keys)
    before = await redis_memory(system)
    short = replace(load, seconds=2, script="operations")
    while catalogue.reserved < orders:
        await system.load(catalogue, short, OPERATIONS="100")
        await system.until_drained()
    after = await redis_memory(system)
    opened: int = (await system.check_books(catalogue))["taken"]
    grown = after["used"] - before["used"]
    log = after["log"] - before["log"]
    say(
        f"  {opened:,} open orders: {(grown - log) / opened:.0f} bytes each, and a log of {after['log'] / 2**20:.0f} MiB"
    )
    return {
        "orders": opened,
        "bytes_each": round((grown - log) / opened, 1),
        "log_bytes": after["log"],
        "bytes_each_with_log": round(grown / opened, 1),
    }


async def redis_memory(system: System) -> dict[str, int]:
    """Bytes that Redis uses, and those of its streams (the log), once neither changes any more."""
    deadline = time.monotonic() + SETTLED_LIMIT_S
    last: dict[str, int] = {}
    while True:
        info = await redis_says(system, "INFO", "memory")
        used = next(int(line.partition(":")[2]) for line in info.splitlines() if line.startswith("used_memory:"))
        log = 0
        cursor = "0"
        while True:
            cursor, *names = (await redis_says(system, "SCAN", cursor, "COUNT", "10000", "TYPE", "stream")).split()
            for name in names:
                log += int(await redis_says(system, "MEMORY", "USAGE", name, "SAMPLES", "0"))
            if cursor == "0":
                break
        if last and log == last["log"] and abs(used - last["used"]) < 64 * 1024:
            return {"used": used, "log": log}
        if time.monotonic() > deadline:
            raise BenchError(f"Redis' memory does not come to rest within {SETTLED_LIMIT_S:.0f} s")
        last = {"used": used, "log": log}
        await asyncio.sleep(1)


async def redis_says(system: System, *command: str) -> str:
    """The answer to one command, by Redis' own client and its owner's account."""
    host, port, user, password = system.redis_owner()
    process = await asyncio.create_subprocess_exec(
        *("redis-cli", "-h", host, "-p", port, "--user", user, *command),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "REDISCLI_AUTH": password},
    )
    out = (await until_ended(process, 30)).decode()
    if process.returncode != 0 or out.startswith(("ERR", "NOAUTH", "NOPERM", "WRONGPASS")):
        raise BenchError(f"redis-cli {command[0]}: {out.strip()}")
    return out
