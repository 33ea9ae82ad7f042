"""How many single-line reserves one process decides through `Batcher.submit`, and what Python spends on each.

    python -m tests.integration.bench_batcher [--seconds 3] [--callers 256] [--keys 1000] [--profile]

Real Redis and MariaDB, started for it. Two runs: `ack=redis`, and `ack=broker` with a namer that names every entry as
soon as it is in the log (in this process, so its time counts too). "CPU" is this process' time in user and kernel mode
per operation; Redis' and MariaDB's work on the same machine is not in it, but takes its share of the cores.
"""

import argparse
import asyncio
import cProfile
import itertools
import pstats
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from inventory.batcher import Batcher
from stockgate.servers import Servers
from tests.integration.hot_world import World, outcomes, reserve


async def submit_for(
    batcher: Batcher, seconds: float, callers: int, keys: int
) -> tuple[int, float, float, list[float]]:
    """Operations done, seconds, CPU seconds, and each operation's latency in seconds."""
    numbers = itertools.count()
    latencies: list[float] = []
    end = time.monotonic() + seconds

    async def caller() -> None:
        while (began := time.monotonic()) < end:
            number = next(numbers)
            answer = await batcher.submit([reserve(f"o{number}-{began}", (f"k{number % keys}", 1))])
            if outcomes(answer.results) != ["DONE"]:
                raise AssertionError(answer)
            latencies.append(time.monotonic() - began)

    began, cpu = time.monotonic(), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(callers):
            tasks.create_task(caller())
    return len(latencies), time.monotonic() - began, time.process_time() - cpu, sorted(latencies)


async def run(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        servers = Servers(Path(directory))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(servers.redis.start())
            tasks.create_task(servers.mariadb.start())
        try:
            for ack in ("redis", "broker"):
                for callers in (1, arguments.callers):
                    async with World.open(servers, ack=ack) as world, world.naming(), world.gateway() as gateway:
                        await world.stock(*(f"k{number}" for number in range(arguments.keys)), available=10**9)
                        await submit_for(gateway.batcher, 0.3, callers, arguments.keys)
                        profile = cProfile.Profile()
                        if arguments.profile and callers > 1:
                            profile.enable()
                        count, seconds, cpu, latencies = await submit_for(
                            gateway.batcher, arguments.seconds, callers, arguments.keys
                        )
                        profile.disable()
                        sys.stdout.write(
                            f"ack={ack:6} callers={callers:4} {count / seconds:8.0f} operations/s"
                            f"  CPU {cpu / count * 1e6:5.1f} us each"
                            f"  p50 {latencies[count // 2] * 1e3:.2f} ms  p99 {latencies[count * 99 // 100] * 1e3:.2f} ms\n"
                        )
                        if arguments.profile and callers > 1:
                            pstats.Stats(profile).sort_stats("tottime").print_stats(28)
        finally:
            await servers.redis.stop()
            await servers.mariadb.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--callers", type=int, default=256)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--profile", action="store_true")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
