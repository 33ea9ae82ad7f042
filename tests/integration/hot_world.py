"""A shard on real servers in which the test plays the leader and the persist worker, step by step."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import lua
from inventory.batcher import Batcher
from inventory.confirmations import Confirmations
from inventory.db_path import DbPath
from inventory.events import Change, Naming, decode_changes, encode_naming, genesis
from inventory.hot_path import Failure, HotPath
from inventory.loading import Loader
from inventory.moves import REQUEST_MOVES, Move
from inventory.operations import Line, Operation, Result, fingerprint, lines_fingerprint
from inventory.outcomes import Outcome
from inventory.shard_path import ShardPath
from inventory.shard_state import ShardWatch
from kernel import redis_keys
from kernel.metrics import Metrics
from kernel.mysql_door import Database, Statement, Transaction
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys
from kernel.settings import Settings
from sql import migrate
from stockgate.servers import Servers

TERM = 7
TABLES = (
    "inventory_config",
    "inventory_balance",
    "inventory_order",
    "inventory_reservation",
    "inventory_request",
    "inventory_ledger",
    "inventory_parked_event",
)


@dataclass
class Gateway:
    """One gateway process's parts, with connections of its own."""

    path: HotPath
    loader: Loader
    watch: ShardWatch
    confirmations: Confirmations
    batcher: Batcher
    deciding: RedisDoor
    metrics: Metrics


class World:
    shard = 0

    def __init__(self, servers: Servers, settings: Settings, database: Database, redis: RedisDoor) -> None:
        self.servers = servers
        self.settings = settings
        self.database = database
        self.redis = redis
        self.epoch = 0
        self.evicted_now_ms = int(time.time() * 1000) + 3_600_000

    @classmethod
    @asynccontextmanager
    async def open(cls, servers: Servers, **changed: Any) -> AsyncGenerator["World"]:
        """An empty system with one open epoch."""
        for server in (servers.redis, servers.mariadb):
            if not server.alive():
                await server.start()
        await servers.mariadb.execute("CREATE DATABASE IF NOT EXISTS stockgate_hot")
        values: dict[str, Any] = {
            "redis_url": servers.redis.url.removesuffix("/0") + "/5",
            "mysql_url": servers.mariadb.url + "_hot",
            "hold_grace_ms": 0,
            **changed,
        }
        settings = Settings(**values)
        await migrate.migrate(settings)
        database = await Database.open(settings, name="test")
        redis = RedisDoor.open(settings, name="test")
        await redis.command("FLUSHDB")
        world = cls(servers, settings, database, redis)
        async with database.transaction() as transaction:
            for table in TABLES:
                await transaction.execute(Statement(f"DELETE FROM {table}"))
            await transaction.execute(
                Statement("UPDATE shard SET mode = 'opening', epoch = 0, applied_m = 0, term = %s"), (TERM,)
            )
        await world.open_epoch()
        try:
            yield world
        finally:
            await redis.close()
            await database.close()

    @property
    def names(self) -> EpochKeys:
        return EpochKeys(self.shard, self.epoch)

    # --- the leader -----------------------------------------------------------------------------------------------------

    async def open_epoch(self, *, grace_ms: int = 0) -> int:
        """Draw the next epoch, create its head, set the row hot, unfence."""
        self.epoch += 1
        digest = genesis(self.shard, self.epoch)
        await self.redis.run(
            lua.load("open_head"),
            [self.names.head, redis_keys.register(self.shard)],
            [self.epoch, TERM, digest, grace_ms],
        )
        await self.sql(
            "UPDATE shard SET mode = 'hot', epoch = %s, applied_m = 0, applied_digest = %s", (self.epoch, digest)
        )
        await self.fence(fenced=False)
        return self.epoch

    async def fence(self, *, fenced: bool = True) -> None:
        await self.redis.run(lua.load("fence"), [self.names.head], [TERM, "1" if fenced else "0"])

    async def head(self) -> dict[str, str]:
        flat = await self.redis.command("HGETALL", self.names.head)
        return {key.decode(): value.decode() for key, value in zip(flat[::2], flat[1::2], strict=True)}

    async def entries(self, after_m: int = 0) -> list[tuple[int, str, bytes]]:
        """Number, digest and payload of the log's entries."""
        reply = await self.redis.command("XRANGE", self.names.log, f"({after_m}", "+")
        found: list[tuple[int, str, bytes]] = []
        for entry_id, flat in reply:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            found.append((int(entry_id.partition(b"-")[0]), fields[b"d"].decode(), fields[b"e"]))
        return found

    async def written(self) -> None:
        """Wait until Redis has handed all of its file to the kernel, where a kill takes nothing from it."""
        async with asyncio.timeout(10):
            while True:
                told: bytes = await self.redis.command("INFO", "persistence")
                fields = dict(line.split(":", 1) for line in told.decode().splitlines() if ":" in line)
                if (fields["aof_buffer_length"], fields["aof_pending_bio_fsync"]) == ("0", "0"):
                    return
                await asyncio.sleep(0.01)

    async def changes(self) -> list[Change]:
        return [change for _, _, payload in await self.entries() for change in decode_changes(payload)]

    async def name(self, entries: Sequence[tuple[int, str, bytes]] | None = None, *, said: bool = True) -> int:
        """Move the confirmed mark to the log's end (or these entries' end), and name them unless nobody is to hear it."""
        if entries is None:
            entries = await self.entries(int((await self.head())["confirmed_m"]))
        if not entries:
            return 0
        naming = Naming(self.epoch, [(m, digest) for m, digest, _ in entries])
        channel = redis_keys.confirmed_channel(self.shard) if said else "nobody"
        m, digest, _ = entries[-1]
        return await self.redis.run(
            lua.load("confirm"), [self.names.head, self.names.log], [TERM, m, digest, channel, encode_naming(naming)]
        )

    @asynccontextmanager
    async def naming(self) -> AsyncGenerator[None]:
        """Somebody names whatever comes, at once."""
        door = RedisDoor.open(self.settings, name="naming")

        async def relay() -> None:
            m = int((await self.head())["confirmed_m"])
            while True:
                found = await door.read_stream(self.names.log, m, 200, 1000)
                if found:
                    await self.name([(number, fields[b"d"].decode(), fields[b"e"]) for number, fields in found])
                    m = found[-1][0]

        async with running(relay()):
            yield
        await door.close()

    async def image(self) -> dict[bytes, bytes]:
        """All that Redis holds, name by name."""
        return {name: await self.redis.command("DUMP", name) for name in await self.redis.command("KEYS", "*")}

    async def go_back_to(self, image: Mapping[bytes, bytes]) -> None:
        """Redis holds what it held then; no connection notices."""
        await self.redis.commands([("FLUSHDB",), *(("RESTORE", name, 0, dump) for name, dump in image.items())])

    async def evict(self) -> int:
        """Let every settled record go that MySQL has."""
        row = await self.shard_row()
        return await self.redis.run(
            lua.load("evict"),
            [self.names.head, self.names.settled],
            [TERM, row["applied_m"], self.evicted_now_ms, 1000],
        )

    # --- the persist worker ---------------------------------------------------------------------------------------------

    async def apply(self) -> int:
        """Apply everything of the log that MySQL lacks; returns applied_m."""
        row = await self.shard_row()
        applied_m, digest = row["applied_m"], row["applied_digest"]
        async with self.database.transaction() as transaction:
            for m, entry_digest, payload in await self.entries(applied_m):
                for change in decode_changes(payload):
                    await self._apply_change(transaction, m, change)
                applied_m, digest = m, entry_digest
            await transaction.execute(
                Statement("UPDATE shard SET applied_m = %s, applied_digest = %s"), (applied_m, digest)
            )
        return applied_m

    async def _apply_change(self, transaction: Transaction, m: int, change: Change) -> None:
        if change.kind in REQUEST_MOVES:
            event = change.events[0]
            await transaction.execute(
                Statement(
                    "INSERT INTO inventory_request (tenant, request_no, inventory_key, kind, fingerprint, epoch, seq)"
                    " VALUES (%s, %s, %s, %s, %s, %s, %s)"
                ),
                (
                    change.tenant,
                    change.ref,
                    event.inventory_key,
                    int(change.kind),
                    change.fingerprint,
                    self.epoch,
                    event.seq,
                ),
            )
        else:
            await transaction.execute(
                Statement("REPLACE inventory_order VALUES (%s, %s, 0, %s, %s, %s, %s, %s, %s, %s, %s, %s)"),
                (
                    change.tenant,
                    change.ref,
                    change.fingerprint,
                    change.buyer_id,
                    change.line_count,
                    change.open_lines,
                    change.due_ms,
                    self.epoch,
                    m,
                    change.created_ms,
                    change.at_ms,
                ),
            )
        for event in change.events:
            after = (event.available, event.reserved, event.sold, event.consumed, event.locked)
            await transaction.execute(
                Statement(
                    "UPDATE inventory_balance SET available = %s, reserved = %s, sold = %s, consumed = %s, locked = %s,"
                    " total = %s, seq = %s, inventory_version = %s WHERE inventory_key = %s"
                ),
                (*after, sum(after), event.seq, event.version, event.inventory_key),
            )
            await transaction.execute(
                Statement(
                    "INSERT INTO inventory_ledger VALUES (%s, %s, 0, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s,"
                    " %s, %s, %s, %s, %s, %s, %s, %s, '', %s, %s)"
                ),
                (
                    event.inventory_key,
                    event.seq,
                    self.epoch,
                    m,
                    int(change.kind),
                    change.tenant,
                    change.ref,
                    event.state,
                    event.qty,
                    event.d_available,
                    event.d_reserved,
                    event.d_sold,
                    event.d_consumed,
                    event.d_locked,
                    *after,
                    event.version,
                    change.due_ms,
                    change.at_ms,
                    change.actor,
                    change.reason,
                ),
            )
            if change.kind not in REQUEST_MOVES:
                await transaction.execute(
                    Statement("REPLACE inventory_reservation VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"),
                    (
                        change.tenant,
                        change.ref,
                        event.position,
                        event.inventory_key,
                        event.qty,
                        event.state,
                        change.reason,
                        self.epoch,
                        event.seq,
                        change.at_ms,
                    ),
                )

    # --- MySQL ----------------------------------------------------------------------------------------------------------

    async def sql(self, text: str, params: Sequence[Any] = ()) -> int:
        async with self.database.transaction() as transaction:
            return await transaction.execute(Statement(text), params)

    async def shard_row(self) -> dict[str, Any]:
        rows = await self.database.fetch_all(Statement("SELECT mode, epoch, applied_m, applied_digest FROM shard"))
        return dict(zip(("mode", "epoch", "applied_m", "applied_digest"), rows[0], strict=True))

    async def stock(self, *keys: str, available: int = 100) -> None:
        """Make keys with this much to sell."""
        async with self.database.transaction() as transaction:
            for key in keys:
                await transaction.execute(
                    Statement(
                        "INSERT INTO inventory_balance (inventory_key, shard_no, available, total) VALUES (%s, 0, %s, %s)"
                    ),
                    (key, available, available),
                )

    # --- Redis ----------------------------------------------------------------------------------------------------------

    async def balance(self, key: str) -> dict[str, int]:
        flat = await self.redis.command("HGETALL", self.names.balance(key))
        return {name.decode(): int(value) for name, value in zip(flat[::2], flat[1::2], strict=True)}

    # --- gateways -------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def gateway(self, *, settings: Settings | None = None, listening: bool = True) -> AsyncGenerator[Gateway]:
        """A gateway's parts, running."""
        settings = settings or self.settings
        async with AsyncExitStack() as stack:
            database = await Database.open(settings, name="gateway")
            stack.push_async_callback(database.close)
            doors: list[RedisDoor] = []
            for name in ("deciding", "loading", "asking"):
                door = RedisDoor.open(settings, name=name)
                stack.push_async_callback(door.close)
                doors.append(door)
            watch = ShardWatch(database, self.shard)
            await watch.refresh()
            loader = Loader(database, doors[1], self.shard)
            confirmations = Confirmations(settings, doors[2], self.shard)
            path = HotPath(settings, doors[0], loader, watch, confirmations)
            metrics = Metrics()
            db_path = DbPath(settings, database, self.shard)
            batcher = Batcher(settings, ShardPath(watch, path, db_path), confirmations, metrics)
            await stack.enter_async_context(running(watch.run()))
            if listening:
                await stack.enter_async_context(running(confirmations.run()))
                await confirmations.subscribed()
            await stack.enter_async_context(running(batcher.run()))
            yield Gateway(path, loader, watch, confirmations, batcher, doors[0], metrics)


class Pause:
    """Holds up every call of one asynchronous method, before it or after it, until `go_on` is set."""

    def __init__(self, owner: Any, method: str, *, after: bool = False) -> None:
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()
        original = getattr(owner, method)

        async def paused(*arguments: Any, **named: Any) -> Any:
            result = await original(*arguments, **named) if after else None
            self.reached.set()
            await self.go_on.wait()
            return result if after else await original(*arguments, **named)

        setattr(owner, method, paused)


@asynccontextmanager
async def running(work: Any) -> AsyncGenerator[asyncio.Task[None]]:
    """Run something beside the block, cancel it at its end, and show why it ended before, if it did."""
    task: asyncio.Task[None] = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# --- operations ---------------------------------------------------------------------------------------------------------


def reserve(
    ref: str, *lines: tuple[str, int], ttl_ms: int = 60_000, tenant: str = "shop", buyer: str = ""
) -> Operation:
    asked = [Line(*line) for line in lines or (("k1", 1),)]
    return Operation(
        Move.RESERVE,
        0,
        tenant,
        ref,
        fingerprint=lines_fingerprint(asked),
        ttl_ms=ttl_ms,
        buyer_id=buyer,
        lines=asked,
    )


def settle(kind: Move, ref: str, *, tenant: str = "shop", reason: str = "") -> Operation:
    return Operation(kind, 0, tenant, ref, reason=reason)


def confirm(ref: str) -> Operation:
    return settle(Move.CONFIRM, ref)


def release(ref: str) -> Operation:
    return settle(Move.RELEASE, ref, reason="cancelled")


def read(ref: str) -> Operation:
    return settle(Move.READ, ref)


def adjust(request_no: str, key: str, delta: int) -> Operation:
    return Operation(
        Move.ADJUST, 0, "shop", request_no, fingerprint=fingerprint(key, str(delta)), lines=[Line(key, delta)]
    )


def outcomes(decisions: Sequence[Result | Failure]) -> list[str]:
    """Names of the outcomes, `REPLAY` for what had been done before, or the failures' codes and outcomes."""
    names: list[str] = []
    for decision in decisions:
        if isinstance(decision, Failure):
            names.append(f"{decision.code} {decision.outcome}")
        else:
            outcome = decision.outcome
            names.append("REPLAY" if outcome == Outcome.DONE and decision.replay else outcome.name)
    return names
