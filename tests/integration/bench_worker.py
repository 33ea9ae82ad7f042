"""How fast the persist worker is: events per second from message bodies to COMMIT, and through a real queue.

    .venv/bin/python -m tests.integration.bench_worker [--events 100000] [--keys 1000]

Private MariaDB (durable commits) and RabbitMQ in a temporary folder, one worker, everything on this machine. The log is
what a shop makes: orders of one or two lines, reserved, two of three confirmed, the rest released, 64 changes to an entry.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop
from pydantic import SecretStr

from inventory.events import genesis
from inventory.ledger import Batch, apply_batch
from inventory.sequence import GapMemory, read_message
from inventory.shard_state import read_shard
from kernel import amqp_topology, logs
from kernel.amqp_door import Publisher
from kernel.clock import SYSTEM_CLOCK
from kernel.mysql_door import Database, Statement
from kernel.process import collect_seldom
from kernel.settings import Settings
from persist_worker.main import GARBAGE_LOOK, work
from sql.migrate import migrate
from stockgate.servers import MariaDBServer, RabbitServer
from tests.log_builder import LogBuilder

CHANGES_PER_ENTRY = 64


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


async def through_queue(settings: Settings, database: Database, log: LogBuilder) -> float:
    """Seconds from the first message published until all is applied; the worker runs beside its publisher."""
    publisher = await Publisher.connect(settings, name="bench")
    await publisher.declare_log_queue(0)
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(work(settings, stop))
        began = time.perf_counter()
        for first in range(0, log.head_m, 4):
            await asyncio.gather(
                *(
                    publisher.publish(amqp_topology.log_queue(0), log.message(m), message_type="entries")
                    for m in range(first + 1, min(first + 4, log.head_m) + 1)
                )
            )
        while (await read_shard(database, 0)).applied_m < log.head_m:
            await asyncio.sleep(0.02)
        seconds = time.perf_counter() - began
        stop.set()
        await worker
    await publisher.close()
    return seconds


async def bench(events: int, keys: int, run_dir: Path) -> None:
    mariadb, rabbitmq = MariaDBServer(run_dir), RabbitServer(run_dir)
    _ = mariadb.port
    await asyncio.gather(mariadb.start(), rabbitmq.start())
    try:
        log = shop_log(events, keys)
        total = sum(key.seq for key in log.keys.values())
        collect_seldom(GARBAGE_LOOK)
        say(f"{total} events, {log.head_m} entries, {len(log.orders)} orders, {keys} keys")
        base, _, _ = mariadb.url.rpartition("/")
        for size in (500, 1_000, 2_000, 0):
            await mariadb.execute("CREATE DATABASE stockgate_bench")
            settings = Settings(
                mysql_url=SecretStr(f"{base}/stockgate_bench"),
                amqp_url=SecretStr(rabbitmq.url),
                log_level="warning",
                _env_file=None,  # pyright: ignore[reportCallIssue]
            )
            logs.configure(settings, "bench")
            database = await prepare(settings, log)
            if size:
                seconds = await apply_alone(database, batches_of(log.messages(2), size), total)
                say(f"apply, {size:5d} events a transaction: {total / seconds:10,.0f} events/s")
            else:
                seconds = await through_queue(settings, database, log)
                say(f"publish, queue, gather, apply, ack:     {total / seconds:10,.0f} events/s")
            await database.close()
            await mariadb.execute("DROP DATABASE stockgate_bench")
    finally:
        await asyncio.gather(mariadb.stop(), rabbitmq.stop())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=1_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bench(arguments.events, arguments.keys, Path(folder)))


if __name__ == "__main__":
    main()
