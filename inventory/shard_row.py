"""The shard row as the leader reads and moves it: every change is compare-and-set on what was read."""

from typing import NamedTuple

import sql
from inventory.events import genesis
from kernel.mysql_door import Database


class LeaderRow(NamedTuple):
    """One reading. Times are UTC epoch ms by the clock named."""

    mode: str
    epoch: int
    term: int
    applied_term: int
    applied_m: int
    applied_digest: str
    applied_event_ms: int
    """Redis' time of the last change applied."""
    wanted_m: int
    held_version: int
    rebuild_wanted: int
    rebuild_reason: str
    now_ms: int
    """MySQL's time of this reading."""


async def read_row(database: Database, shard: int) -> LeaderRow:
    """Read the shard's row; raises what the door raises, and LookupError if the shard has none."""
    rows = await database.fetch_all(sql.load("select_shard_for_leader"), (shard,))
    if not rows:
        raise LookupError(f"shard {shard} has no row: the migrations have not run")
    return LeaderRow(*rows[0])


async def begin_term(database: Database, shard: int, read: LeaderRow) -> int | None:
    """Draw the next term; None if somebody else drew one since the reading."""
    async with database.transaction() as transaction:
        drawn = await transaction.execute(sql.load("update_shard_term"), (read.term + 1, shard, read.term))
    return read.term + 1 if drawn == 1 else None


async def set_hot(database: Database, shard: int, read: LeaderRow, epoch: int, now_ms: int) -> bool:
    """Let the shard's new epoch begin; False if the row is not what was read any more."""
    parameters = (epoch, genesis(shard, epoch), now_ms, shard, read.epoch, read.term)
    async with database.transaction() as transaction:
        return await transaction.execute(sql.load("update_shard_hot"), parameters) == 1
