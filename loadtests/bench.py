"""Speed and memory, measured on this machine: `make bench`, or `python -m loadtests.bench --help`.

Everything runs on the same two cores: a stack of its own with one gateway, worker and reconciler, its servers, the
baselines and the load. Figures are ratios of rounds that alternate within one run, because machines drift and
neighbours disturb; docs/performance.md says how to read them.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from client.failures import ClientError
from loadtests.bench_cpu import measure_cpu
from loadtests.bench_endurance import drain_backlog, measure_memory, sustain
from loadtests.bench_machine import describe_machine
from loadtests.bench_page import page_of
from loadtests.bench_processes import stay_on_cores
from loadtests.bench_ratios import compare_db_mode, compare_with_constant, compare_with_designs, compare_with_script
from loadtests.bench_rounds import say
from loadtests.bench_system import BenchError, running_stack
from loadtests.bench_targets import judge
from loadtests.bench_wrk import Load, LoadFailedError

CORES = 2
RUN_LIMIT_S = 870.0
"""A run is over within 15 minutes, with the half minute in which the last stack stops."""
FAILURES = (BenchError, LoadFailedError, ClientError, OSError, TimeoutError)

ALL_MET, TARGET_MISSED, NOT_MEASURED = 0, 1, 2

Part = Callable[[argparse.Namespace, Path], Coroutine[Any, Any, dict[str, Any]]]


def _load(arguments: argparse.Namespace, **changed: Any) -> Load:
    return Load(
        **{"seconds": arguments.seconds, "connections": arguments.connections, "keys": arguments.keys, **changed}
    )


async def machine(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What it is measured on, with a probe of the disk."""
    return await describe_machine(folder, arguments.cores, fsync_writes=100 if arguments.quick else 1_000)


async def designs(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """ack=broker beside the first designs: seed over many keys, MySQL alone on one."""
    async with running_stack(folder, "broker") as system:
        return await compare_with_designs(system, _load(arguments), arguments.rounds)


async def constant(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """ack=redis beside a server that answers a constant."""
    async with running_stack(folder, "redis") as system:
        return await compare_with_constant(system, _load(arguments), arguments.rounds)


async def db(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """MySQL deciding (db mode) beside MySQL alone, on one hot key."""
    async with running_stack(folder, "broker") as system:
        return await compare_db_mode(system, _load(arguments), arguments.rounds)


async def operations(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Calls of 100 operations beside the script alone."""
    async with running_stack(folder, "broker") as system:
        # All of its orders stay open: longer rounds would fill Redis.
        load = _load(arguments, seconds=min(4.0, arguments.seconds))
        return await compare_with_script(system, load, arguments.rounds, folder)


async def worker(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The persist worker alone on a prepared backlog."""
    events, rounds = (20_000, 1) if arguments.quick else (150_000, 3)
    return await drain_backlog(folder, events=events, rounds=rounds)


async def sustained(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A minute at 90 % of the capacity measured just before, in an open loop."""
    async with running_stack(folder, "broker") as system:
        return await sustain(system, _load(arguments), sustained_s=10.0 if arguments.quick else 60.0)


async def memory(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Memory of the processes over a million operations, and of an open order in Redis."""
    orders, count = (5_000, 10_000) if arguments.quick else (100_000, 1_000_000)
    async with running_stack(folder, "broker") as system:
        return await measure_memory(system, _load(arguments), orders=orders, operations=count)


async def cpu(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """CPU per operation of each process, under one kind of load."""
    shapes = {"spread": {}, "hot": {"keys": 1}, "operations": {"script": "operations"}}
    async with running_stack(folder, arguments.ack) as system:
        return await measure_cpu(system, _load(arguments, **shapes[arguments.shape]), arguments.rounds)


PARTS: dict[str, Part] = {
    part.__name__: part for part in (machine, cpu, designs, constant, db, operations, worker, sustained, memory)
}


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line; `all` where it names no part."""
    parser = argparse.ArgumentParser(prog="loadtests.bench", description=(__doc__ or "").splitlines()[0])
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--quick", action="store_true", help="short and few rounds: whether it works, not how fast; misses no target"
    )
    common.add_argument("--json", action="store_true", help="one JSON object on the last line")
    common.add_argument("--seconds", type=float, help="length of one round")
    common.add_argument("--rounds", type=int, help="rounds of each target")
    common.add_argument("--connections", type=int, default=64)
    common.add_argument("--keys", type=int, default=1_000)
    parts = parser.add_subparsers(dest="part", metavar="PART", required=True)
    every = parts.add_parser("all", parents=[common], help="every part in turn, at most 15 minutes; the default")
    every.add_argument("--page", type=Path, help="write docs/performance.md, or another file, from the result")
    for name, part in PARTS.items():
        one = parts.add_parser(name, parents=[common], help=(part.__doc__ or "").strip())
        if name == "cpu":
            one.add_argument("--ack", choices=("broker", "redis"), default="broker")
            one.add_argument("--shape", choices=("spread", "hot", "operations"), default="spread")
    page = parts.add_parser("page", help="write the page from a result that was printed by --json")
    page.add_argument("result", type=Path)
    page.add_argument("page", type=Path)
    named = any(word in {*PARTS, "all", "page", "-h", "--help"} for word in words)
    arguments = parser.parse_args(words if named else ["all", *words])
    if arguments.part != "page":
        arguments.seconds = arguments.seconds or (2.0 if arguments.quick else 5.0)
        arguments.rounds = arguments.rounds or (2 if arguments.quick else 5)
    if arguments.part == "all":
        arguments.ack, arguments.shape = "broker", "spread"
    return arguments


async def measure(arguments: argparse.Namespace, runs: Path) -> dict[str, Any]:
    """Carry out the parts, each on a fresh stack; a part that fails is named, and the others go on."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is not None:
        # Otherwise a stack would outlive whoever was told to end.
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
    wanted = list(PARTS) if arguments.part == "all" else ["machine", arguments.part]
    deadline = loop.time() + RUN_LIMIT_S
    measured: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    for name in dict.fromkeys(wanted):
        began = time.monotonic()
        say(f"{name}: {(PARTS[name].__doc__ or '').strip()}")
        try:
            with tempfile.TemporaryDirectory(prefix="bench-", dir=runs) as folder:
                async with asyncio.timeout_at(deadline):
                    measured[name] = await PARTS[name](arguments, Path(folder).absolute())
        except FAILURES as error:
            over = isinstance(error, TimeoutError) and loop.time() >= deadline
            failed[name] = f"the run's {RUN_LIMIT_S:.0f} s were over" if over else f"{type(error).__name__}: {error}"
            say(f"{name} FAILED: {failed[name]}")
        say(f"{name}: {time.monotonic() - began:.0f} s")
    targets = judge(measured)
    return {
        "ok": not failed and (arguments.quick or all(target["met"] for target in targets)),
        "quick": arguments.quick,
        "targets": targets,
        "failed": failed,
        "parts": measured,
    }


def main() -> int:
    """Exit code 0 only if everything was measured and no target missed; 1: one was missed, 2: something was not measured."""
    arguments = read_arguments(sys.argv[1:])
    if arguments.part == "page":
        arguments.page.write_text(page_of(json.loads(arguments.result.read_text().splitlines()[-1])))
        return ALL_MET
    if shutil.which("wrk") is None:
        say("wrk is missing: run `make bench`, which installs it, or `apt-get install wrk`")
        return NOT_MEASURED
    try:
        arguments.cores = stay_on_cores(CORES)
    except ValueError as error:
        say(f"bench: {error}")
        return NOT_MEASURED
    # Beside the checkout's own data, on a real disk: a temporary folder may be in memory, where commits cost nothing.
    runs = Path(".run")
    runs.mkdir(exist_ok=True)
    with contextlib.suppress(asyncio.CancelledError):
        result = asyncio.run(measure(arguments, runs))
        for target in result["targets"]:
            met = "met" if target["met"] else "MISSED"
            print(f"{met:6} {target['text']}: {target['median']:,.3g} {target['unit']} (target: {target['target']})")
        for name, why in result["failed"].items():
            print(f"FAILED {name}: {why}")
        if arguments.part == "all" and arguments.page:
            arguments.page.write_text(page_of(result))
        if arguments.json:
            print(json.dumps(result))
        if result["failed"]:
            return NOT_MEASURED
        return ALL_MET if result["ok"] else TARGET_MISSED
    return NOT_MEASURED


if __name__ == "__main__":
    sys.exit(main())
