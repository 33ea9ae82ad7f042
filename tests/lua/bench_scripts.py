"""What one deciding call costs inside Redis: `python -m tests.lua.bench_scripts [rounds]`.

One connection, 256 single-line operations a call, unique orders, 1,000 keys loaded, AOF everysec. The figures are the
server's own (`INFO commandstats`, usec_per_call of EVALSHA): the best and the median call of all rounds.
"""

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import redis

from inventory.moves import Move
from inventory.operations import Operation
from stockgate.servers import RedisServer
from tests.lua.shard import Shard, order_op, reserve_all

OPERATIONS = 256
KEYS = 1000


def server_us(client: Any, shard: Shard, operations: list[Operation]) -> float:
    """Microseconds per operation that the server spent in one call; every operation must be accepted."""
    client.config_resetstat()
    reply = shard.call(*operations)
    assert all(result.outcome == 0 and result.replay == 0 for result in reply.results)
    return client.info("commandstats")["cmdstat_evalsha"]["usec"] / len(operations)


def measure(client: Any, rounds: int) -> None:
    shard = Shard(client, 0)
    shard.open()
    names = [f"sku-{i}@store-7@2026-12-24" for i in range(KEYS)]
    shard.load_keys([[name, 1_000_000_000, 0, 0, 0, 0, 0, 0] for name in names])
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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder))
        asyncio.run(server.start())
        try:
            measure(redis.Redis.from_url(server.url), int(sys.argv[1]) if len(sys.argv) > 1 else 60)
        finally:
            asyncio.run(server.stop())


if __name__ == "__main__":
    main()
