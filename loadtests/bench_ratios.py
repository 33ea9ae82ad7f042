"""Ratios of one run: Stockgate beside the baselines, and calls of many operations beside the script alone."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtests.bench_rounds import Scatter, Take, rates, ratio, take_turns
from loadtests.bench_system import Baseline, BenchError, Catalogue, System, baseline
from loadtests.bench_wrk import Load, Round

WARM_UP_S = 2
OPERATIONS = 100
SCRIPT_START_LIMIT_S = 60.0


def on_stockgate(system: System, catalogue: Catalogue, load: Load, **environment: str) -> Take:
    """A round on the gateway, over when MySQL has all of it: the next target shall not pay for its backlog."""

    async def take() -> Round:
        done = await system.load(catalogue, load, **environment)
        await system.until_drained()
        return done

    return take


def on_baseline(target: Baseline, load: Load) -> Take:
    async def take() -> Round:
        return await target.load(load)

    return take


async def _warm_up(*takes: Callable[[Load], Take], load: Load) -> None:
    """Connections, caches, compiled code, loaded keys: none of them is part of a round."""
    for take in takes:
        await take(replace(load, seconds=WARM_UP_S))()


async def compare_with_designs(system: System, load: Load, rounds: int) -> dict[str, Any]:
    """`ack=broker` beside the seed's design over many keys, and beside MySQL alone on one hot key."""
    catalogue = await system.catalogue(load.keys)
    hot = replace(load, keys=1)
    environment = system.baseline_environment()
    async with baseline("seed", environment) as seed, baseline("mysql", environment) as mysql:
        await _warm_up(
            lambda load: on_baseline(seed, load),
            lambda load: on_baseline(mysql, load),
            lambda load: on_stockgate(system, catalogue, load),
            load=load,
        )
        taken = await take_turns(
            {
                "seed spread": on_baseline(seed, load),
                "stockgate spread": on_stockgate(system, catalogue, load),
                "mysql hot": on_baseline(mysql, hot),
                "stockgate hot": on_stockgate(system, catalogue, hot),
            },
            rounds,
        )
    return {
        "seed_ratio": ratio(taken["stockgate spread"], taken["seed spread"]).as_json(),
        "mysql_ratio": ratio(taken["stockgate hot"], taken["mysql hot"]).as_json(),
        "rates": rates(taken),
        "books": await system.check_books(catalogue),
    }


async def compare_db_mode(system: System, load: Load, rounds: int) -> dict[str, Any]:
    """The shard in db mode beside MySQL alone, both on one hot key; and how long a switch there and back takes."""
    catalogue = await system.catalogue(1)
    hot = replace(load, keys=1)
    async with baseline("mysql", system.baseline_environment()) as mysql:
        to_db_s = await system.switch("db")
        await _warm_up(
            lambda load: on_baseline(mysql, load), lambda load: on_stockgate(system, catalogue, load), load=hot
        )
        taken = await take_turns(
            {"mysql hot": on_baseline(mysql, hot), "stockgate db mode": on_stockgate(system, catalogue, hot)}, rounds
        )
        to_hot_s = await system.switch("hot")
    return {
        "mysql_ratio": ratio(taken["stockgate db mode"], taken["mysql hot"]).as_json(),
        "switch_s": {"db": round(to_db_s, 2), "hot": round(to_hot_s, 2)},
        "rates": rates(taken),
        "books": await system.check_books(catalogue),
    }


async def compare_with_constant(system: System, load: Load, rounds: int) -> dict[str, Any]:
    """`ack=redis` beside a server that answers a constant."""
    catalogue = await system.catalogue(load.keys)
    async with baseline("constant", {}) as constant:
        await _warm_up(
            lambda load: on_baseline(constant, load), lambda load: on_stockgate(system, catalogue, load), load=load
        )
        taken = await take_turns(
            {"constant": on_baseline(constant, load), "stockgate": on_stockgate(system, catalogue, load)}, rounds
        )
    return {
        "constant_share": ratio(taken["stockgate"], taken["constant"]).as_json(),
        "rates": rates(taken),
        "books": await system.check_books(catalogue),
    }


@contextlib.asynccontextmanager
async def script_alone(folder: Path, seconds: float) -> AsyncGenerator[Take]:
    """The deciding script on a Redis of its own, in a process that knows its inside; yields what takes a turn."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.lua.bench_scripts", "turns"),
        *("--seconds", str(seconds), "--folder", str(folder)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    commands, answers = process.stdin, process.stdout
    if commands is None or answers is None:
        raise BenchError("the script's own benchmark has no pipes")

    async def answer(limit_s: float) -> dict[str, float]:
        async with asyncio.timeout(limit_s):
            line = await answers.readline()
        if not line:
            raise BenchError("the script's own benchmark ended; its messages stand above")
        return json.loads(line)

    async def take() -> Round:
        commands.write(b"\n")
        # Its calls are made beforehand, which takes longer than to run them.
        figures = await answer(60 + 10 * seconds)
        each_ms = 1000 * figures["seconds"] / figures["operations"]
        operations = int(figures["operations"])
        return Round(operations, operations, figures["seconds"], each_ms, each_ms, 0.0, figures)

    try:
        await answer(SCRIPT_START_LIMIT_S)
        yield take
    finally:
        commands.close()
        try:
            async with asyncio.timeout(30):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def compare_with_script(system: System, load: Load, rounds: int, folder: Path) -> dict[str, Any]:
    """Calls of 100 operations beside the script alone."""
    catalogue = await system.catalogue(load.keys)
    many = replace(load, script="operations")
    async with script_alone(folder, load.seconds) as alone:
        await _warm_up(lambda load: on_stockgate(system, catalogue, load, OPERATIONS=str(OPERATIONS)), load=many)
        taken = await take_turns(
            {"script alone": alone, "stockgate": on_stockgate(system, catalogue, many, OPERATIONS=str(OPERATIONS))},
            rounds,
        )
    return {
        "operations_per_s": Scatter.of([one.per_s for one in taken["stockgate"]]).as_json(0),
        "script_share": ratio(taken["stockgate"], taken["script alone"]).as_json(),
        "operations_in_a_call": OPERATIONS,
        "rates": rates(taken),
        "books": await system.check_books(catalogue),
    }
