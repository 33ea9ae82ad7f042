"""Reading keys in both stores, MySQL first, for the reconciler and the audit. Bounded: one page at a time."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec

import lua
import sql
from inventory.compare import InMySQL, InRedis, Reading
from inventory.moves import Quantities
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys

PAGE_KEYS: Final = 500

_SELECT_BALANCES: Final = sql.load("select_balances_to_compare")


class RedisRow(msgspec.Struct, array_like=True, frozen=True):
    """One row of `read_keys.lua`."""

    state: int
    """0 cold, 1 loaded, 2 lost."""
    inventory_key: str
    available: int = 0
    reserved: int = 0
    sold: int = 0
    consumed: int = 0
    locked: int = 0
    seq: int = 0
    version: int = 0
    frozen: int = 0


class HeadMissing(Exception):
    """Redis has no head for this epoch: it is empty, or the epoch is over."""


async def read_keys(database: Database, redis: RedisDoor, keys: EpochKeys, names: Sequence[str]) -> list[Reading]:
    """Read up to `PAGE_KEYS` keys in both stores; raises HeadMissing and what the doors raise."""
    if not names:
        return []
    in_mysql = await balances_in_mysql(database, names)
    in_redis = await _balances_in_redis(redis, keys, names)
    return [Reading(keys.epoch, name, in_mysql.get(name), in_redis[name]) for name in names]


async def balances_in_mysql(database: Database, names: Sequence[str]) -> dict[str, InMySQL]:
    """The balance rows of some keys; absent where MySQL has none."""
    rows = await database.fetch_all(_SELECT_BALANCES, (tuple(names),))
    return {row[0]: InMySQL(Quantities(*(int(value) for value in row[1:6])), int(row[6]), bool(row[7])) for row in rows}


async def _balances_in_redis(redis: RedisDoor, keys: EpochKeys, names: Sequence[str]) -> dict[str, InRedis | None]:
    found: dict[str, InRedis | None] = {}
    for row in await rows_in_redis(redis, keys, names):
        quantities = Quantities(row.available, row.reserved, row.sold, row.consumed, row.locked)
        found[row.inventory_key] = None if row.state == 0 else InRedis(quantities if row.state == 1 else None, row.seq)
    return found


async def rows_in_redis(redis: RedisDoor, keys: EpochKeys, names: Sequence[str]) -> list[RedisRow]:
    """Up to `PAGE_KEYS` keys as Redis has them, in their order; raises HeadMissing and what the door raises."""
    packed: bytes = await redis.run(
        lua.load("read_keys"),
        [keys.head, keys.log, keys.opened, *(keys.balance(name) for name in names)],
        # Who compares wants to see an older Redis as it is.
        [msgspec.msgpack.encode(list(names)), 0, ""],
    )
    code, rows = msgspec.msgpack.decode(packed, type=tuple[int, list[Any]])
    if code != 0:
        raise HeadMissing(f"epoch {keys.epoch} of shard {keys.shard} has no head")
    return [msgspec.convert(values, RedisRow) for values in rows]


async def opened_keys(redis: RedisDoor, keys: EpochKeys) -> AsyncIterator[list[str]]:
    """The keys opened in the epoch, page by page, each at least once. Keys opened meanwhile may be missing."""
    cursor = 0
    while True:
        answer: list[Any] = await redis.command("SSCAN", keys.opened, cursor, "COUNT", PAGE_KEYS)
        cursor = int(answer[0])
        members: list[bytes] = answer[1]
        names = [member.decode("ascii") for member in members]
        for start in range(0, len(names), PAGE_KEYS):
            yield names[start : start + PAGE_KEYS]
        if cursor == 0:
            return
