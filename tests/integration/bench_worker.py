"""How fast the persist worker is, on private servers, one worker, everything on this machine.

    python -m tests.integration.bench_worker backlog [--events 100000] [--rounds 3] [--json]

the worker's process alone on a prepared backlog: everything is in the queue before it is started. The clock runs from its
first commit to its last. This is the benchmark's figure.

    python -m tests.integration.bench_worker apply [--events 100000]

only from message bodies to COMMIT, in this process, for several sizes of a transaction: for tuning.

The log is what a shop makes: orders of one or two lines, reserved, two of three confirmed, the rest released, 64 changes
to an entry, 4 entries to a message.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop
from pydantic import SecretStr

from inventory.events import decode_changes, genesis
from inventory.ledger import Batch, apply_batch
from inventory.sequence import GapMemory, read_message
from inventory.shard_state import read_shard
from kernel import amqp_topology, logs
from kernel.amqp_door import Publisher
from kernel.clock import SYSTEM_CLOCK
from kernel.mysql_door import Database, Statement
from kernel.process import collect_seldom
from kernel.settings import Settings
from loadtests.bench_processes import CpuReading
from persist_worker.main import GARBAGE_LOOK
from sql.migrate import migrate
from stockgate.processes import Child, log_tail
from stockgate.servers import MariaDBServer, RabbitServer
from tests.log_builder import LogBuilder

CHANGES_PER_ENTRY = 64
ENTRIES_PER_MESSAGE = 4
DRAIN_LIMIT_S = 120.0
POLL_S = 0.02


def shop_log(events: int, keys: int) -> LogBuilder:
    """About so many events over so many keys, some keys far more wanted than others."""
    chance, log, made = random.Random(7), LogBuilder(), 0
    names = [f"sku-{number:06d}@store-1" for number in range(keys)]
    for name in names:
        log.adjust(name, 10_000_000)
        made += 1
        if len(log.pending) == CHANGES_PER_ENTRY:
            log.entry()
    waiting: list[str] = []
    number = 0
    while made < events:
        if len(waiting) > 500:
            order_id = waiting.pop(0)
            change = log.confirm(order_id) if chance.random() < 0.67 else log.release(order_id)
        else:
            number += 1
            wanted = {names[int(len(names) * chance.random() ** 3)]: 1 for _ in range(chance.choice([1, 1, 2]))}
            change = log.reserve(f"order-{number:09d}", wanted)
            waiting.append(f"order-{number:09d}")
        made += len(change.events)
        if len(log.pending) == CHANGES_PER_ENTRY:
            log.entry()
    if log.pending:
        log.entry()
    return log


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def prepare(settings: Settings, log: LogBuilder) -> Database:
    """Fresh tables in which the log's epoch is hot and all its keys exist."""
    await migrate(settings)
    database = await Database.open(settings, name="bench")
    async with database.transaction() as transaction:
        await transaction.execute(
            Statement("UPDATE shard SET mode = 'hot', epoch = 1, term = 1, applied_term = 1, applied_digest = %s"),
            (genesis(0, 1),),
        )
        await transaction.execute_many(
            Statement("INSERT INTO inventory_balance (inventory_key, shard_no) VALUES (%s, %s)"),
            [(key, 0) for key in sorted(log.keys)],
        )
    return database


def batches_of(bodies: Sequence[bytes], events: int) -> list[list[bytes]]:
    batches: list[list[bytes]] = [[]]
    count = 0
    for body in bodies:
        count += read_message(body, 0).events
        batches[-1].append(body)
        if count >= events:
            batches.append([])
            count = 0
    return [batch for batch in batches if batch]


async def apply_alone(database: Database, batches: Sequence[Sequence[bytes]], events: int) -> float:
    """Seconds from bodies to COMMIT, batch after batch, decoding included."""
    began, cpu = time.perf_counter(), time.process_time()
    for bodies in batches:
        incoming = [read_message(body, 0) for body in bodies]
        plan = await apply_batch(database, Batch(0, incoming, GapMemory(), {}), SYSTEM_CLOCK)
        assert not plan.stopped
        assert not plan.parked
    say(f"    {1e6 * (time.process_time() - cpu) / events:.1f} µs of this process' CPU an event")
    return time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Backlog:
    """One run on a prepared backlog."""

    events: int
    """Those after the worker's first commit."""
    seconds: float
    cpu_us_per_event: dict[str, float]
    """By process, for the same events."""


async def publish_all(settings: Settings, log: LogBuilder) -> None:
    publisher = await Publisher.connect(settings, name="bench")
    await publisher.declare_log_queue(0)
    for body in log.messages(ENTRIES_PER_MESSAGE):
        await publisher.publish(amqp_topology.log_queue(0), body, message_type="entries")
    await publisher.close()


async def drain_backlog(
    settings: Settings, database: Database, log: LogBuilder, servers: dict[str, int], log_path: Path
) -> Backlog:
    """Start a worker, watch what is applied until it is all, stop the worker."""
    events_until = [0, *itertools.accumulate(sum(len(c.events) for c in decode_changes(p)) for _, p in log.entries)]
    worker = Child("persist-worker", log_path)
    environment = {
        **os.environ,
        "STOCKGATE_MYSQL_URL": settings.mysql_url.get_secret_value(),
        "STOCKGATE_AMQP_URL": settings.amqp_url.get_secret_value(),
    }
    worker.spawn([sys.executable, "-m", "stockgate", "persist-worker"], env=environment)
    try:
        first: tuple[float, int, CpuReading] | None = None
        processes: dict[str, int] = {}
        async with asyncio.timeout(DRAIN_LIMIT_S):
            while True:
                applied_m, now = (await read_shard(database, 0)).applied_m, time.perf_counter()
                if applied_m and first is None:
                    assert worker.pid is not None
                    processes = {**servers, "persist-worker": worker.pid}
                    first = now, events_until[applied_m], CpuReading.take(processes)
                if applied_m == log.head_m:
                    break
                if not worker.alive():
                    raise RuntimeError(f"the worker ended with {worker.exit_code}:\n{log_tail(log_path)}")
                await asyncio.sleep(POLL_S)
        assert first is not None
        began, events_before, before = first
        spent = CpuReading.take(processes).since(before)
        events = events_until[-1] - events_before
        return Backlog(
            events, now - began, {name: round(1e6 * cpu_s / events, 1) for name, cpu_s in spent.by_name.items()}
        )
    finally:
        await worker.stop()


async def check_tables(database: Database, events: int) -> None:
    """All events are in the ledger, each once; the plan has checked the quantities against their after-images."""
    ((rows, keys),) = await database.fetch_all(
        Statement("SELECT COUNT(*), (SELECT SUM(seq) FROM inventory_balance) FROM inventory_ledger"), ()
    )
    assert int(rows) == int(keys) == events, f"{rows} rows in the ledger, {keys} changes of balances, {events} events"


@asynccontextmanager
async def fresh_database(mariadb: MariaDBServer, rabbitmq: RabbitServer, log: LogBuilder) -> AsyncGenerator[Any]:
    """Settings and a database in which the log's epoch is hot; gone at the end."""
    await mariadb.execute("CREATE DATABASE stockgate_bench")
    settings = Settings(
        mysql_url=SecretStr(f"{mariadb.url.rpartition('/')[0]}/stockgate_bench"),
        amqp_url=SecretStr(rabbitmq.url),
        log_level="warning",
        _env_file=None,  # pyright: ignore[reportCallIssue]
    )
    logs.configure(settings, "bench")
    database = await prepare(settings, log)
    try:
        yield settings, database
    finally:
        await database.close()
        await mariadb.execute("DROP DATABASE stockgate_bench")


async def bench(arguments: argparse.Namespace, run_dir: Path) -> None:
    mariadb, rabbitmq = MariaDBServer(run_dir), RabbitServer(run_dir)
    _ = mariadb.port
    await asyncio.gather(mariadb.start(), rabbitmq.start())
    try:
        log = shop_log(arguments.events, arguments.keys)
        total = sum(key.seq for key in log.keys.values())
        say(f"{total} events, {log.head_m} entries, {len(log.orders)} orders, {arguments.keys} keys")
        if arguments.what == "apply":
            collect_seldom(GARBAGE_LOOK)
            for size in (500, 1_000, 2_000):
                async with fresh_database(mariadb, rabbitmq, log) as (_, database):
                    seconds = await apply_alone(database, batches_of(log.messages(2), size), total)
                    say(f"apply, {size:5d} events a transaction: {total / seconds:10,.0f} events/s")
            return
        assert mariadb.pid is not None
        assert rabbitmq.pid is not None
        servers = {"mariadb": mariadb.pid, "rabbitmq": rabbitmq.pid}
        runs: list[Backlog] = []
        for number in range(arguments.rounds):
            async with fresh_database(mariadb, rabbitmq, log) as (settings, database):
                await publish_all(settings, log)
                runs.append(await drain_backlog(settings, database, log, servers, run_dir / f"worker-{number}.log"))
                await check_tables(database, total)
            costs = ", ".join(f"{name} {us:.1f}" for name, us in runs[-1].cpu_us_per_event.items())
            say(f"{runs[-1].events / runs[-1].seconds:10,.0f} events/s; CPU µs an event: {costs}")
        if arguments.json:
            sys.stdout.write(json.dumps({"events": total, "runs": [asdict(run) for run in runs]}) + "\n")
    finally:
        await asyncio.gather(mariadb.stop(), rabbitmq.stop())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("backlog", "apply"))
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--folder", type=Path, help="where servers keep their data; a temporary folder by default")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(bench(arguments, Path(folder)))


if __name__ == "__main__":
    main()
