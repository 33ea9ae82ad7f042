"""Speed and memory, measured on this machine: `make bench`, or `python -m loadtests.bench --help`.

Everything runs on the same two cores: a stack of its own with one gateway, worker and reconciler, its servers, the
baselines and the load. Figures are ratios of rounds that alternate within one run, because machines drift and
neighbours disturb; docs/performance.md says how to read them.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from client.failures import ClientError
from loadtests.bench_cpu import measure_cpu
from loadtests.bench_endurance import drain_backlog, measure_memory, sustain
from loadtests.bench_machine import describe_machine
from loadtests.bench_processes import stay_on_cores
from loadtests.bench_ratios import compare_with_constant, compare_with_designs, compare_with_script
from loadtests.bench_rounds import say
from loadtests.bench_system import BenchError, running_stack
from loadtests.bench_wrk import Load, LoadFailedError

CORES = 2
FULL_LIMIT_S = 900.0
FAILURES = (BenchError, LoadFailedError, ClientError, OSError, TimeoutError)

Part = Callable[[argparse.Namespace, Path], Coroutine[Any, Any, dict[str, Any]]]


def _load(arguments: argparse.Namespace, **changed: Any) -> Load:
    return Load(
        **{"seconds": arguments.seconds, "connections": arguments.connections, "keys": arguments.keys, **changed}
    )


async def cpu(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """CPU per operation of each process, under one kind of load."""
    shapes = {"spread": {}, "hot": {"keys": 1}, "operations": {"script": "operations"}}
    async with running_stack(folder, arguments.ack) as system:
        return await measure_cpu(system, _load(arguments, **shapes[arguments.shape]), arguments.rounds)


async def designs(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """ack=broker beside the first designs: seed over many keys, MySQL alone on one."""
    async with running_stack(folder, "broker") as system:
        return await compare_with_designs(system, _load(arguments), arguments.rounds)


async def constant(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """ack=redis beside a server that answers a constant."""
    async with running_stack(folder, "redis") as system:
        return await compare_with_constant(system, _load(arguments), arguments.rounds)


async def operations(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Calls of 100 operations beside the script alone."""
    async with running_stack(folder, "broker") as system:
        return await compare_with_script(system, _load(arguments), arguments.rounds, folder)


async def worker(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The persist worker alone on a prepared backlog."""
    return await drain_backlog(folder, events=20_000 if arguments.quick else 150_000, rounds=min(3, arguments.rounds))


async def sustained(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A minute at 90 % of the capacity measured just before, in an open loop."""
    async with running_stack(folder, "broker") as system:
        return await sustain(system, _load(arguments), sustained_s=10.0 if arguments.quick else 60.0)


async def memory(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Memory of the processes over a million operations, and of an open order in Redis."""
    orders, operations = (5_000, 20_000) if arguments.quick else (100_000, 1_000_000)
    async with running_stack(folder, "broker") as system:
        return await measure_memory(system, _load(arguments), orders=orders, operations=operations)


async def machine(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What it is measured on, with a probe of the disk."""
    return await describe_machine(folder, arguments.cores, fsync_writes=100 if arguments.quick else 1_000)


PARTS: dict[str, Part] = {
    "machine": machine,
    "designs": designs,
    "constant": constant,
    "operations": operations,
    "worker": worker,
    "sustained": sustained,
    "memory": memory,
    "cpu": cpu,
}


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="loadtests.bench", description=(__doc__ or "").splitlines()[0])
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--quick", action="store_true", help="short rounds, few of them: whether it works, not how fast"
    )
    common.add_argument("--json", action="store_true", help="one JSON object on the last line")
    common.add_argument("--seconds", type=float, help="length of one round")
    common.add_argument("--rounds", type=int, help="rounds of each target")
    common.add_argument("--connections", type=int, default=64)
    common.add_argument("--keys", type=int, default=1_000)
    parts = parser.add_subparsers(dest="part", required=True)
    for name, part in PARTS.items():
        one = parts.add_parser(name, parents=[common], help=(part.__doc__ or "").strip())
        if name == "cpu":
            one.add_argument("--ack", choices=("broker", "redis"), default="broker")
            one.add_argument("--shape", choices=("spread", "hot", "operations"), default="spread")
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or (2.0 if arguments.quick else 6.0)
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 5)
    return arguments


def main() -> int:
    """Measure what was asked for; exit code 0 only if nothing failed and no target was missed, 2 if it could not be measured."""
    arguments = read_arguments()
    if shutil.which("wrk") is None:
        say("wrk is missing: run `make bench`, which installs it, or `apt-get install wrk`")
        return 2
    arguments.cores = stay_on_cores(CORES)
    # Beside the checkout's own data, on a real disk: a temporary folder may be in memory, where commits cost nothing.
    runs = Path(".run")
    runs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=runs) as folder:
        try:
            result = asyncio.run(PARTS[arguments.part](arguments, Path(folder).absolute()))
        except FAILURES as error:
            say(f"bench: {type(error).__name__}: {error}")
            return 2
    print(json.dumps(result) if arguments.json else json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
