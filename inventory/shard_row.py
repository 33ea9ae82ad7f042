"""The shard row as the leader reads and moves it: every change is compare-and-set on what was read."""

from typing import NamedTuple

import sql
from inventory import mode_switch
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
    switch_id: int
    """The switch of the mode that runs; 0 where none does."""
    switch_to: str
    """`hot` or `db`; empty where no switch runs."""
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
        moved = await transaction.execute(sql.load("update_shard_hot"), parameters) == 1
        if moved and read.switch_to == "hot":
            await mode_switch.add_steps(transaction, read.switch_id, ("open",), now_ms)
        return moved


async def leave_db(database: Database, shard: int, read: LeaderRow) -> bool:
    """Let nobody decide any more, so that an epoch can be opened; False if the row is not what was read any more.

    The exclusive lock waits for every transaction in which MySQL decides.
    """
    parameters = (read.now_ms, shard, read.epoch, read.term, read.switch_id)
    async with database.transaction() as transaction:
        moved = await transaction.execute(sql.load("update_shard_opening"), parameters) == 1
        if moved:
            await mode_switch.add_steps(transaction, read.switch_id, ("lock",), read.now_ms)
        return moved


async def enter_db(database: Database, shard: int, read: LeaderRow) -> bool:
    """Let MySQL decide where nobody did, in an epoch of its own; False if the row is not what was read any more.

    What Redis decided before the row was `opening` is in MySQL, and no head of an opening is hot without this row.
    """
    epoch = read.epoch + 1
    parameters = (epoch, genesis(shard, epoch), read.now_ms, shard, read.epoch, read.term, read.switch_id)
    async with database.transaction() as transaction:
        moved = await transaction.execute(sql.load("update_shard_db"), parameters) == 1
        if moved:
            step = "closed" if read.switch_to == "db" else "back"
            await mode_switch.add_steps(transaction, read.switch_id, (step,), read.now_ms)
        return moved
