"""A shard on real servers: leaders as processes or tasks, the real persist worker, and buyers with their own history."""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from aio_pika import connect as amqp_connect

from inventory.confirmations import Confirmations
from inventory.hot_path import HotPath
from inventory.leader import Leader
from inventory.loading import Loader
from inventory.mode_switch import Status, SwitchView, ToMode, abort_switch, read_switch, request_switch
from inventory.moves import Move
from inventory.operations import Line, Operation, Result, lines_fingerprint
from inventory.operator_actions import Action
from inventory.outcomes import Outcome
from inventory.shard_state import ShardWatch
from kernel.amqp_topology import log_queue
from kernel.metrics import Metrics
from kernel.mysql_door import Database, Statement
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys
from kernel.settings import Settings
from persist_worker.main import work
from sql.migrate import migrate
from stockgate.processes import Child, log_tail
from stockgate.servers import Servers

SHARD = 0
TENANT = "shop"
STOCK = 100_000
KEYS = ("k-1", "k-2", "k-3")


class NotReached(AssertionError):
    """Something that had to become true did not."""


@asynccontextmanager
async def running(work: Coroutine[Any, Any, Any]) -> AsyncGenerator[asyncio.Task[Any]]:
    """Run something beside the block and cancel it at its end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class LeaderProcess:
    """`stockgate leader` as a process that a test may kill, stop and continue."""

    def __init__(self, world: "LeaderWorld", name: str) -> None:
        self._world = world
        self.child = Child(name, world.directory / f"{name}.log")

    def spawn(self, failpoints: str = "") -> None:
        environment = {**os.environ, **self._world.environment, "STOCKGATE_FAILPOINTS": failpoints}
        self.child.spawn([sys.executable, "-m", "stockgate", "leader"], env=environment)

    async def died(self, limit_s: float = 20.0) -> None:
        """Wait until its failpoint has ended it."""
        try:
            async with asyncio.timeout(limit_s):
                await self.child.wait()
        except TimeoutError:
            raise NotReached(f"the failpoint was not reached:\n{log_tail(self.child.log_path)}") from None
        assert self.child.exit_code == -signal.SIGKILL

    async def stopped(self, limit_s: float = 20.0) -> None:
        """Wait until its failpoint has stopped it."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            stat = await asyncio.to_thread(Path(f"/proc/{self.child.pid}/stat").read_text)
            if stat.rpartition(")")[2].split()[0] == "T":
                return
            await asyncio.sleep(0.02)
        raise NotReached(f"the failpoint was not reached:\n{log_tail(self.child.log_path)}")


class LeaderWorld:
    """Use as `async with LeaderWorld.open(servers, tmp_path) as world`."""

    def __init__(self, servers: Servers, directory: Path, **changed: str) -> None:
        self.servers = servers
        self.directory = directory
        name = f"stockgate_leader_{secrets.token_hex(4)}"
        self.database_name = name
        self.environment = {
            "STOCKGATE_REDIS_URL": servers.redis.url,
            "STOCKGATE_MYSQL_URL": servers.mariadb.url.rsplit("/", 1)[0] + "/" + name,
            "STOCKGATE_AMQP_URL": servers.rabbitmq.url,
            "STOCKGATE_HOLD_GRACE_MS": "0",
            "STOCKGATE_REDIS_TIMEOUT_MS": "1000",
            **{f"STOCKGATE_{key.upper()}": value for key, value in changed.items()},
        }
        values: dict[str, Any] = {
            key.removeprefix("STOCKGATE_").lower(): value for key, value in self.environment.items()
        }
        self.settings = Settings(**values)
        self.database: Database
        self.redis: RedisDoor
        self.path: HotPath
        self.loader: Loader
        self.watch: ShardWatch
        self.confirmations: Confirmations
        self.metrics = Metrics()
        self.acked: dict[str, str] = {}
        """Order id → key, of every order that was answered 2xx."""
        self.refused: set[str] = set()
        self.unanswered: set[str] = set()
        self._processes: list[LeaderProcess] = []
        self._order_numbers = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls, servers: Servers, directory: Path, *, worker: bool = True, **changed: str
    ) -> AsyncGenerator["LeaderWorld"]:
        world = cls(servers, directory, **changed)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(world._opened())
            if worker:
                await stack.enter_async_context(world.worker())
            try:
                yield world
            finally:
                for process in world._processes:
                    await process.child.kill(signal.SIGCONT)
                    await process.child.kill()

    @asynccontextmanager
    async def _opened(self) -> AsyncGenerator[None]:
        await self.all_alive()
        await self.servers.mariadb.execute(f"CREATE DATABASE {self.database_name} CHARACTER SET utf8mb4")
        await self.delete_queue()
        await migrate(self.settings)
        async with AsyncExitStack() as stack:
            self.database = await Database.open(self.settings, name="test")
            stack.push_async_callback(self.database.close)
            doors: list[RedisDoor] = []
            for name in ("test", "deciding", "loading", "asking"):
                door = RedisDoor.open(self.settings, name=name)
                stack.push_async_callback(door.close)
                doors.append(door)
            self.redis = doors[0]
            await self.redis.command("FLUSHALL")
            await self.stock(*KEYS)
            self.watch = ShardWatch(self.database, SHARD)
            self.loader = Loader(self.database, doors[2], SHARD)
            self.confirmations = Confirmations(self.settings, doors[3], SHARD)
            self.path = HotPath(self.settings, doors[1], self.loader, self.watch, self.confirmations)
            await stack.enter_async_context(running(self.watch.run()))
            await stack.enter_async_context(running(self.confirmations.run()))
            yield
        await self.all_alive()
        await self.servers.mariadb.execute(f"DROP DATABASE {self.database_name}")

    async def all_alive(self) -> None:
        """Start again what an earlier test left dead."""
        for server in self.servers:
            if not server.alive():
                await server.start()

    # --- roles ----------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def worker(self) -> AsyncGenerator[None]:
        """The real persist worker."""
        stop = asyncio.Event()
        async with running(work(self.settings, stop)) as task:
            yield
            stop.set()
            with suppress(asyncio.CancelledError):
                await task

    @asynccontextmanager
    async def leader(self, *, metrics: Metrics | None = None) -> AsyncGenerator[Leader]:
        """A candidate in this process, asked to end at the block's end."""
        leader = Leader(self.settings, SHARD, database=self.database, metrics=metrics or self.metrics)
        stop = asyncio.Event()
        async with running(leader.run(stop)) as task:
            yield leader
            stop.set()
            await task

    def process(self, failpoints: str = "") -> LeaderProcess:
        """A leader as a process of its own, spawned."""
        process = LeaderProcess(self, f"leader-{len(self._processes) + 1}")
        self._processes.append(process)
        process.spawn(failpoints)
        return process

    async def delete_queue(self) -> None:
        async with await amqp_connect(self.servers.rabbitmq.url) as connection:
            channel = await connection.channel()
            await channel.queue_delete(log_queue(SHARD))

    async def purge_queue(self) -> int:
        """Take every ready message away; how many."""
        async with await amqp_connect(self.servers.rabbitmq.url) as connection:
            channel = await connection.channel()
            queue = await channel.get_queue(log_queue(SHARD))
            return (await queue.purge()).message_count or 0

    # --- stores ---------------------------------------------------------------------------------------------------------

    async def sql(self, text: str, *parameters: object) -> int:
        async with self.database.transaction() as transaction:
            return await transaction.execute(Statement(text), parameters)

    async def query(self, text: str, *parameters: object) -> list[tuple[Any, ...]]:
        return await self.database.fetch_all(Statement(text), parameters)

    async def row(self) -> dict[str, Any]:
        columns = "mode, epoch, term, applied_term, applied_m, applied_digest, wanted_m, rebuild_wanted, alarm, switch_id, switch_to"
        rows = await self.query(f"SELECT {columns} FROM shard WHERE shard_no = 0")
        return dict(zip(columns.split(", "), rows[0], strict=True))

    async def head(self, epoch: int | None = None) -> dict[str, str]:
        if epoch is None:
            epoch = (await self.row())["epoch"]
        flat = await self.redis.command("HGETALL", EpochKeys(SHARD, epoch or 0).head)
        return {key.decode(): value.decode() for key, value in zip(flat[::2], flat[1::2], strict=True)}

    async def stock(self, *keys: str, available: int = STOCK) -> None:
        for key in keys:
            await self.sql(
                "INSERT INTO inventory_balance (inventory_key, shard_no, available, total) VALUES (%s, 0, %s, %s)",
                key,
                available,
                available,
            )

    # --- waiting --------------------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], Awaitable[Any]], what: str, limit_s: float = 20.0) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            error: Exception | None = None
            try:
                if await condition():
                    return
            except Exception as failure:  # noqa: BLE001 - a store that is away is not there yet
                error = failure
            if time.monotonic() > deadline:
                logs = "\n".join(f"{p.child.name}:\n{log_tail(p.child.log_path)}" for p in self._processes)
                row = await self.row() if self.servers.mariadb.alive() else {}
                raise NotReached(f"{what}: not within {limit_s} s ({error!r}), row {row}\n{logs}")
            await asyncio.sleep(0.02)

    async def decides(self, *, beyond_epoch: int = 0, beyond_term: int = 0, limit_s: float = 20.0) -> dict[str, Any]:
        """Wait until the shard decides, in a later epoch and term; the row."""

        async def decided() -> bool:
            row = await self.row()
            head = await self.head(row["epoch"])
            return (
                row["mode"] == "hot"
                and row["epoch"] > beyond_epoch
                and row["term"] > beyond_term
                and head.get("fence") == "0"
                and head.get("term") == str(row["term"])
            )

        await self.until(decided, "the shard decides", limit_s)
        return await self.row()

    async def quiet(self, limit_s: float = 20.0) -> dict[str, Any]:
        """Wait until everything decided is confirmed and applied; the row."""

        async def settled() -> bool:
            row = await self.row()
            head = await self.head(row["epoch"])
            m = str(row["applied_m"])
            return row["mode"] == "hot" and head["fence"] == "0" and head["m"] == head["confirmed_m"] == m

        await self.until(settled, "quiet", limit_s)
        return await self.row()

    # --- switches -------------------------------------------------------------------------------------------------------

    async def request(self, to_mode: ToMode, reason: str = "a test wants it") -> int:
        """Ask for a switch; its id."""
        return await request_switch(self.database, SHARD, to_mode, Action("cli:test", "switch_mode", "shard 0", reason))

    async def abort(self) -> int:
        return await abort_switch(
            self.database, SHARD, Action("cli:test", "abort_switch", "shard 0", "on second thought")
        )

    async def switch(self, switch_id: int | None = None) -> SwitchView:
        view = await read_switch(self.database, SHARD, switch_id)
        assert view is not None
        return view

    async def switched(self, switch_id: int, status: Status = "DONE", limit_s: float = 20.0) -> SwitchView:
        """Wait until a switch has ended in this way."""

        async def ended() -> bool:
            return (await self.switch(switch_id)).status == status

        await self.until(ended, f"switch {switch_id} is {status}", limit_s)
        return await self.switch(switch_id)

    async def switch_over(self, to_mode: ToMode) -> SwitchView:
        """Ask for a switch and wait until it is done."""
        return await self.switched(await self.request(to_mode))

    async def acked_is_applied(self) -> None:
        """Every order that was answered 2xx is in MySQL, once."""
        ledger = await self.query("SELECT ref FROM inventory_ledger WHERE kind = %s", int(Move.RESERVE))
        times = Counter(ref for (ref,) in ledger)
        assert {ref: times[ref] for ref in self.acked if times[ref] != 1} == {}

    # --- buyers ---------------------------------------------------------------------------------------------------------

    async def ask(self, operation: Operation, limit_s: float = 2.0) -> Result | None:
        """Ask once; None where the outcome is unknown or nothing was decided."""
        decided = await self.path.decide([operation])
        decision = decided.decisions[0]
        if not isinstance(decision, Result):
            return None
        if decision.wait:
            with suppress(TimeoutError):
                if await self.confirmations.wait(decided.epoch, decided.m, decided.digest, time.monotonic() + limit_s):
                    return decision
            return None
        return decision

    async def buy(self, key: str = KEYS[0], *, limit_s: float = 30.0, ttl_ms: int = 3_600_000) -> str:
        """One order of one unit, repeated with its id until the answer is definite; its id."""
        self._order_numbers += 1
        order_id = f"order-{self._order_numbers}"
        self.unanswered.add(order_id)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            result = await self.ask(reserve(order_id, key, ttl_ms=ttl_ms))
            if result is not None and result.outcome < Outcome.NOT_LOADED:
                self.unanswered.discard(order_id)
                if result.outcome == Outcome.DONE:
                    self.acked[order_id] = key
                else:
                    self.refused.add(order_id)
                break
            await asyncio.sleep(0.05)
        return order_id

    async def buy_some(self, count: int) -> None:
        for number in range(count):
            await self.buy(KEYS[number % len(KEYS)])

    @asynccontextmanager
    async def buyers(self, count: int = 4) -> AsyncGenerator[None]:
        """Buyers who buy one unit after the other until the block ends, and then get their last answers."""
        stop = asyncio.Event()

        async def shop(number: int) -> None:
            while not stop.is_set():
                await self.buy(KEYS[number % len(KEYS)])

        async with asyncio.TaskGroup() as group:
            for number in range(count):
                group.create_task(shop(number))
            try:
                yield
            finally:
                stop.set()

    async def more_answers(self, count: int = 20, limit_s: float = 20.0) -> None:
        """Wait until buyers got so many more answers."""
        before = len(self.acked)

        async def answered() -> bool:
            return len(self.acked) >= before + count

        await self.until(answered, f"{count} more answers", limit_s)

    # --- invariants -----------------------------------------------------------------------------------------------------

    async def check(self) -> None:
        """Nothing acknowledged is lost, nothing is there twice, and both stores agree."""
        row = await self.quiet()
        assert row["alarm"] == ""
        assert not self.unanswered
        ledger = await self.query("SELECT ref, inventory_key FROM inventory_ledger WHERE kind = %s", int(Move.RESERVE))
        times = Counter(ref for ref, _ in ledger)
        assert [ref for ref, count in times.items() if count > 1] == []
        assert [ref for ref in self.acked if times[ref] == 0] == []
        assert [ref for ref in self.refused if times[ref] > 0] == []
        await self._check_keys(EpochKeys(SHARD, row["epoch"]))

    async def _check_keys(self, names: EpochKeys) -> None:
        columns = "available, reserved, sold, consumed, locked"
        for key, seq, total, *five in await self.query(
            f"SELECT inventory_key, seq, total, {columns} FROM inventory_balance"
        ):
            counted = await self.query(
                "SELECT COUNT(*), COALESCE(MAX(seq), 0), COALESCE(SUM(d_reserved), 0) FROM inventory_ledger"
                " WHERE inventory_key = %s",
                key,
            )
            count, last, reserved = counted[0]
            assert (count, last) == (seq, seq), key
            assert five[1] == int(reserved), key
            assert sum(five) == total, key
            stored = await self.redis.command("HMGET", names.balance(key), *columns.split(", "), "seq")
            if stored[0] is not None:
                assert [int(value) for value in stored] == [*five, seq], key


def reserve(order_id: str, *keys: str, qty: int = 1, ttl_ms: int = 3_600_000) -> Operation:
    lines = [Line(key, qty) for key in keys]
    return Operation(
        Move.RESERVE, 0, TENANT, order_id, fingerprint=lines_fingerprint(lines), ttl_ms=ttl_ms, lines=lines
    )


def read(order_id: str) -> Operation:
    return Operation(Move.READ, 0, TENANT, order_id)


def settle(kind: Move, order_id: str) -> Operation:
    return Operation(kind, 0, TENANT, order_id, reason="cancelled" if kind is Move.RELEASE else "")


def metric(metrics: Metrics, name: str) -> float:
    """The value of a metric of this shard."""
    return metrics.registry.get_sample_value(f"stockgate_{name}", {"shard": str(SHARD)}) or 0.0


def states(result: Result | None) -> Sequence[int]:
    """The states of an order's lines."""
    assert result is not None
    return [line.state for line in result.order_view().lines]
