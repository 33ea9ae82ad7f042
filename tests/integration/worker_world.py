"""A database, the shard's queue and persist workers, for tests that play the leader with a built log."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiormq import connect as amqp_connect
from pydantic import SecretStr

from inventory.events import genesis
from inventory.ledger import Batch, apply_batch
from inventory.moves import LineState
from inventory.plan import Plan
from inventory.sequence import GapMemory, LockedShard, read_message
from inventory.shard_state import read_shard
from kernel import logs
from kernel.amqp_door import Publisher
from kernel.amqp_topology import log_queue
from kernel.clock import SYSTEM_CLOCK
from kernel.metrics import Metrics
from kernel.mysql_door import Database, Statement
from kernel.settings import Settings
from persist_worker.main import ShardWorker
from sql.migrate import migrate
from stockgate.processes import Child, log_tail
from stockgate.servers import Servers
from tests.log_builder import LogBuilder

QUEUE = log_queue(0)


class WorkerWorld:
    """Use as `async with WorkerWorld.open(servers, tmp_path) as world`."""

    def __init__(self, servers: Servers, directory: Path, settings: Settings, database: Database) -> None:
        self.servers = servers
        self.directory = directory
        self.settings = settings
        self.database = database
        self.metrics = Metrics()
        self._children: list[Child] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, servers: Servers, directory: Path, **changed: Any) -> AsyncGenerator["WorkerWorld"]:
        for server in (servers.mariadb, servers.rabbitmq):
            if not server.alive():
                await server.start()
        name = f"stockgate_worker_{secrets.token_hex(4)}"
        await servers.mariadb.execute(f"CREATE DATABASE {name}")
        values: dict[str, Any] = {
            "mysql_url": SecretStr(f"{servers.mariadb.url.rpartition('/')[0]}/{name}"),
            "amqp_url": SecretStr(servers.rabbitmq.url),
            "mysql_timeout_ms": 2_000,
            "log_level": "warning",
            **changed,
        }
        settings = Settings(**values)
        logs.configure(settings, "test")
        await migrate(settings)
        database = await Database.open(settings, name="test")
        world = cls(servers, directory, settings, database)
        await world.make_queue()
        try:
            yield world
        finally:
            for child in world._children:
                await child.kill()
            await database.close()
            if not servers.mariadb.alive():
                await servers.mariadb.start()
            await servers.mariadb.execute(f"DROP DATABASE {name}")

    # --- the leader's part --------------------------------------------------------------------------------------------------

    async def begin(self, log: LogBuilder, *, epoch: int = 1, term: int = 1) -> None:
        """The row as a leader of this term leaves it when it has opened the epoch, and a balance for every key."""
        await self.sql(
            "UPDATE shard SET mode = 'hot', epoch = %s, term = %s, applied_term = %s, applied_m = 0, applied_digest = %s",
            epoch, term, term, genesis(0, epoch),
        )  # fmt: skip
        for key in log.keys:
            await self.sql("INSERT INTO inventory_balance (inventory_key, shard_no) VALUES (%s, 0)", key)

    async def publish(self, bodies: Iterable[bytes]) -> None:
        publisher = await Publisher.connect(self.settings, name="test-leader")
        await publisher.declare_log_queue(0)
        for body in bodies:
            await publisher.publish(QUEUE, body, message_type="test")
        await publisher.close()

    async def make_queue(self) -> None:
        """A fresh queue that takes messages: for a moment after it was made, a busy broker may refuse the first one."""
        await self.delete_queue()

        async def takes() -> bool:
            await self.publish([b""])
            return True

        await self.until(takes, "the queue takes a message")
        await self.purge_queue()

    async def delete_queue(self) -> None:
        connection = await amqp_connect(self.servers.rabbitmq.url)
        channel = await connection.channel()
        await channel.queue_delete(QUEUE)
        await connection.close()

    async def purge_queue(self) -> int:
        connection = await amqp_connect(self.servers.rabbitmq.url)
        channel = await connection.channel()
        answer = await channel.queue_purge(QUEUE)
        await connection.close()
        return answer.message_count or 0

    async def ready_messages(self) -> int:
        """Messages that nobody holds: once the worker has ended, all that it did not acknowledge."""
        connection = await amqp_connect(self.servers.rabbitmq.url)
        channel = await connection.channel()
        answer = await channel.queue_declare(QUEUE, passive=True)
        await connection.close()
        return answer.message_count or 0

    async def waiting_messages(self) -> int:
        """Messages in the queue, ready or held by a consumer, as the broker counted them in the last seconds."""
        out = await self.servers.rabbitmq.ctl("list_queues", "-p", "stockgate", "name", "messages")
        lines = (line.split("\t") for line in out.splitlines())
        return next((int(line[1]) for line in lines if line[0] == QUEUE), 0)

    # --- workers ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def worker(self, settings: Settings | None = None) -> AsyncGenerator[ShardWorker]:
        """A worker in this process, asked to end at the block's end as SIGTERM would."""
        database = await Database.open(settings or self.settings, name="worker")
        worker = ShardWorker(settings or self.settings, 0, database, self.metrics, SYSTEM_CLOCK, logs.get_logger())
        stop = asyncio.Event()
        task = asyncio.create_task(worker.run(stop))
        try:
            yield worker
            stop.set()
            async with asyncio.timeout(15):
                await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await database.close()

    def process(self, failpoints: str = "") -> Child:
        """A worker as a process of its own."""
        child = Child(f"worker-{len(self._children)}", self.directory / f"worker-{len(self._children)}.log")
        environment = {
            **os.environ,
            "STOCKGATE_MYSQL_URL": self.settings.mysql_url.get_secret_value(),
            "STOCKGATE_AMQP_URL": self.settings.amqp_url.get_secret_value(),
            "STOCKGATE_FAILPOINTS": failpoints,
        }
        child.spawn([sys.executable, "-m", "stockgate", "persist-worker"], env=environment)
        self._children.append(child)
        return child

    async def apply(
        self, *bodies: bytes, memory: GapMemory | None = None, proven: dict[tuple[int, int, str], str] | None = None
    ) -> Plan:
        """One transaction without a queue."""
        incoming = [read_message(body, 0) for body in bodies]
        return await apply_batch(self.database, Batch(0, incoming, memory or GapMemory(), proven or {}), SYSTEM_CLOCK)

    # --- MySQL --------------------------------------------------------------------------------------------------------------

    async def sql(self, text: str, *parameters: object) -> int:
        async with self.database.transaction() as transaction:
            return await transaction.execute(Statement(text), parameters)

    async def query(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        return await self.database.fetch_all(Statement(text), parameters)

    async def row(self) -> LockedShard:
        return LockedShard(*await read_shard(self.database, 0))

    async def balance(self, key: str) -> tuple[int, ...]:
        """The five quantities, seq, inventory_version, held."""
        (row,) = await self.query(
            "SELECT available, reserved, sold, consumed, locked, seq, inventory_version, held FROM inventory_balance"
            " WHERE inventory_key = %s",
            key,
        )
        return row

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str, limit_s: float = 20.0) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            error: Exception | None = None
            try:
                if await condition():
                    return
            except Exception as failure:  # noqa: BLE001 -- a store that is away is not there yet
                error = failure
            if time.monotonic() > deadline:
                ends = "\n".join(log_tail(child.log_path) for child in self._children)
                raise AssertionError(f"{what}: not within {limit_s} s ({error!r})\n{ends}")
            await asyncio.sleep(0.02)

    async def until_applied(self, log: LogBuilder, limit_s: float = 20.0) -> None:
        async def applied() -> bool:
            return (await self.row()).applied_m == log.head_m

        await self.until(applied, f"all {log.head_m} entries applied", limit_s)

    async def check(self, log: LogBuilder, *, without: Iterable[str] = ()) -> None:
        """MySQL has exactly what the log says, each event once; keys in `without` are left out."""
        keys = log.keys.keys() - set(without)
        rows = await self.query(
            "SELECT inventory_key, available, reserved, sold, consumed, locked, seq, inventory_version, held"
            " FROM inventory_balance"
        )
        found = {row[0]: row[1:] for row in rows if row[0] in keys}
        assert found == {key: (*log.keys[key].quantities, log.keys[key].seq, log.keys[key].version, 0) for key in keys}
        ledger = await self.query("SELECT inventory_key, COUNT(*), MIN(seq), MAX(seq) FROM inventory_ledger GROUP BY 1")
        counts = {row[0]: row[1:] for row in ledger if row[0] in keys}
        assert counts == {key: (log.keys[key].seq, 1, log.keys[key].seq) for key in keys}
        states = await self.query("SELECT order_id, position, inventory_key, qty, state FROM inventory_reservation")
        assert {row[:4]: row[4] for row in states if row[2] in keys} == {
            (order.order_id, place, line.inventory_key, line.qty): int(line.state)
            for order in log.orders.values()
            for place, line in enumerate(order.lines, 1)
            if line.inventory_key in keys
        }
        if not set(without):
            headers = await self.query("SELECT order_id, open_lines, due_ms FROM inventory_order")
            assert {row[0]: row[1:] for row in headers} == {
                order.order_id: (sum(line.state is LineState.RESERVED for line in order.lines), order.due_ms)
                for order in log.orders.values()
            }
