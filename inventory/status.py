"""How a shard stands, read from both stores and the queue; what cannot be asked is named instead of guessed."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec

import sql
from inventory import operator_actions, reconcile_tasks
from inventory.audit import Check, audit
from inventory.events import decode_changes
from inventory.explain_key import KeyExplanation, explain_key
from inventory.explain_order import OrderExplanation, explain_order
from inventory.head import redis_now_ms
from inventory.mode_switch import SwitchView, ToMode, abort_switch, read_switch, request_switch
from inventory.operator_actions import Action, ActionPage
from inventory.reconcile_tasks import TaskView
from inventory.shard_state import ShardRow, read_shard
from kernel import redis_keys
from kernel.amqp_door import Publisher
from kernel.amqp_topology import leader_lock, log_queue
from kernel.clock import SYSTEM_CLOCK
from kernel.errors import StockgateError
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys
from kernel.settings import Settings

_SELECT_TROUBLES: Final = sql.load("select_shard_troubles")


class LogStatus(msgspec.Struct):
    """A shard's log in Redis. `lag_seconds` is the age of the oldest entry that MySQL does not have."""

    head_m: int
    confirmed_m: int
    fenced: bool
    unconfirmed_bytes: int
    lag_entries: int
    lag_seconds: float


class Troubles(msgspec.Struct):
    """What waits for an operator, and what comparisons found and mended since the tables exist."""

    held_keys: int
    parked_events: int
    stale_entries: int
    drift_found: int
    drift_repaired: int


class ShardReading(msgspec.Struct):
    """One look at a shard. None where the store that knows could not be asked; then `missing` names it."""

    row: ShardRow | None = None
    troubles: Troubles | None = None
    comparison: TaskView | None = None
    """What the reconciler's periodic pass saw last; None before the first."""
    log: LogStatus | None = None
    gateways: int | None = None
    """Processes that listen for namings."""
    queue_depth: int | None = None
    worker_attached: bool | None = None
    leader_present: bool | None = None
    """Whether any process holds the leader's lock."""
    missing: list[str] = []


class Overview:
    """One shard as operators see it. `redis` is a door for questions, never the deciding one."""

    def __init__(self, settings: Settings, database: Database, redis: RedisDoor, shard: int) -> None:
        self._settings = settings
        self._database = database
        self._redis = redis
        self._shard = shard

    async def status(self) -> ShardReading:
        """Ask everything; never raises for a store's trouble."""
        reading = ShardReading(missing=[])
        await _into(reading, "mysql", lambda: _read_mysql(reading, self._database, self._shard))
        await _into(reading, "redis", lambda: _read_redis(reading, self._redis, self._shard))
        await _into(reading, "rabbitmq", lambda: _read_queue(reading, self._settings, self._shard))
        return reading

    async def audit(self) -> list[Check]:
        """The invariants over everything; raises what the doors raise."""
        return await audit(self._database, self._redis, self._shard)

    async def request_reconcile(self, keys: Sequence[str], action: Action) -> int:
        """Leave a task for the reconciler; its number. Raises BadReason and what the door raises."""
        return await reconcile_tasks.request(self._database, self._shard, keys, action, SYSTEM_CLOCK.now_ms())

    async def mode(self) -> tuple[ShardRow, SwitchView | None]:
        """The shard's row, and its newest switch: the running one if one runs. Raises what the door raises."""
        return await read_shard(self._database, self._shard), await read_switch(self._database, self._shard)

    async def request_switch(self, to_mode: ToMode, action: Action) -> int:
        """Begin a switch; its id. Raises as `mode_switch.request_switch`."""
        return await request_switch(self._database, self._shard, to_mode, action)

    async def abort_switch(self, action: Action) -> int:
        """End the running switch; its id. Raises as `mode_switch.abort_switch`."""
        return await abort_switch(self._database, self._shard, action)

    async def actions(self, limit: int, before: str) -> ActionPage:
        """What operators did, the newest first; raises BadCursor and what the door raises."""
        return await operator_actions.read_page(self._database, limit, before)

    async def explain_key(self, key: str, limit: int, before: int) -> KeyExplanation | None:
        """Why a key's number is what it is; None for an unknown key. See `inventory.explain_key`."""
        return await explain_key(self._database, self._redis, self._shard, key, limit, before)

    async def explain_order(self, tenant: str, order_id: str, limit: int, after: str) -> OrderExplanation | None:
        """Why an order stands as it does; None for an unknown order. See `inventory.explain_order`."""
        return await explain_order(self._database, self._redis, self._shard, tenant, order_id, limit, after)

    async def read_reconcile(self, task_id: int) -> TaskView | None:
        """One task; None if there is none with this number. Raises what the door raises."""
        return await reconcile_tasks.read_task(self._database, task_id)


async def read_log_status(redis: RedisDoor, row: ShardRow) -> LogStatus | None:
    """The log of the row's epoch; None if Redis has no such head. Raises what the door raises."""
    names = EpochKeys(row.shard_no, row.epoch)
    reply: list[Any] = await redis.command(
        "HMGET", names.head, "m", "confirmed_m", "fence", "appended_bytes", "confirmed_bytes"
    )
    if reply[0] is None:
        return None
    head_m, confirmed_m, fence, appended, confirmed = (int(value or 0) for value in reply)
    lag_seconds = await _lag_seconds(redis, names, row.applied_m) if head_m > row.applied_m else 0.0
    return LogStatus(
        head_m, confirmed_m, bool(fence), appended - confirmed, max(0, head_m - row.applied_m), lag_seconds
    )


async def _into(reading: ShardReading, store: str, read: Callable[[], Awaitable[None]]) -> None:
    try:
        await read()
    except StockgateError:
        reading.missing.append(store)


async def _read_mysql(reading: ShardReading, database: Database, shard: int) -> None:
    reading.row = await read_shard(database, shard)
    rows = await database.fetch_all(_SELECT_TROUBLES, (shard,) * 5)
    reading.troubles = Troubles(*(int(value) for value in rows[0]))
    reading.comparison = await reconcile_tasks.read_periodic(database, shard)


async def _read_redis(reading: ShardReading, redis: RedisDoor, shard: int) -> None:
    counted: list[Any] = await redis.command("PUBSUB", "NUMSUB", redis_keys.confirmed_channel(shard))
    reading.gateways = int(counted[1])
    if reading.row is not None and reading.row.mode == "hot":
        reading.log = await read_log_status(redis, reading.row)


async def _read_queue(reading: ShardReading, settings: Settings, shard: int) -> None:
    # An operator's question is rare: a connection for it alone disturbs nobody who publishes.
    publisher = await Publisher.connect(settings, name="status")
    try:
        reading.queue_depth, consumers = await publisher.queue_depth(log_queue(shard))
        reading.worker_attached = consumers > 0
        reading.leader_present = await publisher.lock_taken(leader_lock(shard))
    finally:
        await publisher.close()


async def _lag_seconds(redis: RedisDoor, names: EpochKeys, applied_m: int) -> float:
    entries: list[Any] = await redis.command("XRANGE", names.log, f"{applied_m + 1}-0", "+", "COUNT", 1)
    if not entries:
        return 0.0
    fields: list[bytes] = entries[0][1]
    payload = dict(zip(fields[::2], fields[1::2], strict=True))[b"e"]
    oldest_ms = decode_changes(payload)[0].at_ms
    return max(0.0, (await redis_now_ms(redis) - oldest_ms) / 1000)
