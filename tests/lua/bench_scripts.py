"""What the deciding script does by itself, without gateway and HTTP, on a private Redis with AOF everysec.

    python -m tests.lua.bench_scripts cost [--rounds 60]

prints what one call of 256 single-line operations over 1,000 keys costs inside Redis, by the server's own figures (`INFO
commandstats`, usec of EVALSHA): the best and the median call of all rounds.

    python -m tests.lua.bench_scripts turns [--seconds 4]

says `{"ready": true}`, and then for each line that it reads measures one turn: reserves per second over one connection,
512 to a call, the calls made beforehand and sent without waiting for each other's reply. One JSON object to a line. The
benchmark lets it take turns with the same operations over HTTP.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import redis

import lua
from inventory.moves import Move
from inventory.operations import CallHeader, Operation, Reply
from kernel import limits
from stockgate.servers import RedisServer
from tests.lua.shard import Shard, order_op, reserve_all

OPERATIONS = 256
KEYS = 1000
CALLS_SENT_AT_ONCE = 40


def open_shard(client: Any, names: list[str]) -> Shard:
    """An empty Redis with a hot shard and plenty of each key."""
    client.flushall()
    shard = Shard(client, 0)
    shard.open()
    shard.load_keys([[name, 1_000_000_000, 0, 0, 0, 0, 0, 0] for name in names])
    return shard


def server_us(client: Any, shard: Shard, operations: list[Operation]) -> float:
    """Microseconds per operation that the server spent in one call; every operation must be accepted."""
    client.config_resetstat()
    reply = shard.call(*operations)
    assert all(result.outcome == 0 and result.replay == 0 for result in reply.results)
    return client.info("commandstats")["cmdstat_evalsha"]["usec"] / len(operations)


def measure_cost(client: Any, rounds: int) -> None:
    names = [f"sku-{i}@store-7@2026-12-24" for i in range(KEYS)]
    shard = open_shard(client, names)
    found: dict[str, list[float]] = {}
    for call in range(rounds):
        for kind, key_at in (("spread", lambda n: names[n % KEYS]), ("hot", lambda _: names[0])):
            refs = [f"{kind}-{call}-{i}" for i in range(OPERATIONS)]
            reserves = [
                reserve_all(ref, {key_at(call * OPERATIONS + i): 1}, buyer=f"buyer-{i}", group=i)
                for i, ref in enumerate(refs)
            ]
            confirms = [order_op(Move.CONFIRM, ref, group=i) for i, ref in enumerate(refs)]
            found.setdefault(f"reserve, {kind} keys", []).append(server_us(client, shard, reserves))
            found.setdefault(f"confirm, {kind} keys", []).append(server_us(client, shard, confirms))
    for what, costs in sorted(found.items()):
        best, median = min(costs), statistics.median(costs)
        sys.stdout.write(
            f"{what:22s} best {best:5.1f} us = {1e6 / best:6,.0f}/s   median {median:5.1f} us = {1e6 / median:6,.0f}/s\n"
        )


def prepared_calls(shard: Shard, names: list[str], turn: int) -> Iterator[list[Any]]:
    """EVALSHA commands, as many at once as are sent at once; the orders are as those of the load over HTTP."""
    numbers = count(1)
    sha = lua.load("reserve").sha
    header = CallHeader(shard.names.epoch, 0, 1 << 40, 1 << 40)
    while True:
        commands: list[Any] = []
        for _ in range(CALLS_SENT_AT_ONCE):
            operations = [
                reserve_all(f"bench-{turn}-0-{number}", {names[number % KEYS]: 1}, group=group)
                for group, number in zip(range(limits.BATCH_OPERATIONS_MAX), numbers, strict=False)
            ]
            keys, args = shard.call_parts(operations, header)
            commands.append(("EVALSHA", sha, len(keys), *keys, *args))
        yield commands


def measure_turn(client: Any, turn: int, seconds: float) -> dict[str, float]:
    """Reserves per second; every one must be accepted."""
    names = [f"bench-1-{number}" for number in range(KEYS)]
    shard = open_shard(client, names)
    client.script_load(lua.load("reserve").source)
    operations, took_s = 0, 0.0
    client.config_resetstat()
    for commands in prepared_calls(shard, names, turn):
        pipeline = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        began = time.perf_counter()
        replies = pipeline.execute()
        took_s += time.perf_counter() - began
        for packed in replies:
            results = msgspec.msgpack.decode(packed, type=Reply).results
            assert all(result.outcome == 0 and result.replay == 0 for result in results)
            operations += len(results)
        if took_s >= seconds:
            break
    server_us = client.info("commandstats")["cmdstat_evalsha"]["usec"]
    return {"operations": operations, "seconds": took_s, "server_us_per_operation": server_us / operations}


def take_turns(client: Any, seconds: float) -> None:
    sys.stdout.write(json.dumps({"ready": True}) + "\n")
    sys.stdout.flush()
    for turn, _ in enumerate(sys.stdin):
        sys.stdout.write(json.dumps(measure_turn(client, turn, seconds)) + "\n")
        sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("cost", "turns"))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--folder", type=Path, help="where Redis keeps its data; a temporary folder by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        server = RedisServer(Path(folder))
        asyncio.run(server.start())
        try:
            client: Any = redis.Redis.from_url(server.url)
            if arguments.what == "cost":
                measure_cost(client, arguments.rounds)
            else:
                take_turns(client, arguments.seconds)
        finally:
            asyncio.run(server.stop())


if __name__ == "__main__":
    main()
