"""The shard's row in MySQL, as every process but the worker sees it: who decides, in which epoch, how far it is applied.

The row is the authority on mode and epoch. A process works with the row it read last and is told so by a fence, a
missing head or the row's lock when that is out of date; nothing here is a promise that the row has not moved.
"""

import asyncio
from typing import Final, NamedTuple

import sql
from kernel import limits
from kernel.errors import StockgateError
from kernel.mysql_door import Database

_SELECT_SHARD: Final = sql.load("select_shard")
_CLOSED_POLLS_FASTER: Final = 5
"""While nobody decides, the row is read this many times as often: every caller waits for it to open."""


class ShardRow(NamedTuple):
    """One row of `shard`, column for column. Times are UTC epoch ms, (epoch, applied_m) says what MySQL has."""

    shard_no: int
    mode: str
    """`hot`, `db` or `opening`."""
    epoch: int
    term: int
    applied_term: int
    applied_m: int
    applied_digest: str
    applied_at_ms: int
    applied_event_ms: int
    wanted_m: int
    held_version: int
    rebuild_wanted: int
    rebuild_reason: str
    since_ms: int
    alarm: str
    alarm_detail: str


class NoSuchShard(StockgateError):
    """The database has no row for this shard: it was not migrated, or it is another system's."""


async def read_shard(database: Database, shard: int) -> ShardRow:
    """Read the row; raises what `Database` raises, and NoSuchShard where there is none."""
    rows = await database.fetch_all(_SELECT_SHARD, (shard,))
    if not rows:
        raise NoSuchShard(f"no row for shard {shard}: run `stockgate migrate`")
    return ShardRow(*rows[0])


class ShardWatch:
    """The row as this process knows it, read again every `limits.SHARD_POLL_MS` by `run`, and at once by `refresh`."""

    def __init__(self, database: Database, shard: int) -> None:
        self._database = database
        self.shard = shard
        self.row: ShardRow | None = None
        """None until it was read for the first time. Stays as it was while MySQL is away."""
        self.failure: StockgateError | None = None
        """Why the last poll failed; None after one that did not."""
        self._reads_begun = 0
        self._read_taken = 0
        self._changed = asyncio.Event()

    @property
    def mode(self) -> str:
        """The shard's mode by the row that was read last; empty where nothing is known yet."""
        return self.row.mode if self.row is not None else ""

    @property
    def hot_epoch(self) -> int:
        """The epoch in which Redis decides, or 0 where it does not (or nothing is known yet)."""
        return self.row.epoch if self.row is not None and self.row.mode == "hot" else 0

    async def refresh(self) -> ShardRow:
        """Read the row now; raises what `read_shard` raises and then keeps the one it had.

        Reads run side by side on several connections: one that began earlier never replaces what a later one saw.
        """
        self._reads_begun += 1
        number = self._reads_begun
        row = await read_shard(self._database, self.shard)
        if number > self._read_taken:
            self._read_taken = number
            self._take(row)
        return self.row or row

    def _take(self, row: ShardRow) -> None:
        if row != self.row:
            self.row = row
            self._changed.set()
            self._changed = asyncio.Event()

    async def wait_change(self) -> ShardRow | None:
        """Wait until the row differs in any column from what it is at this call, and return it."""
        await self._changed.wait()
        return self.row

    async def run(self) -> None:
        """Read the row for ever. Ends only by cancellation; while MySQL is away it keeps trying."""
        while True:
            try:
                await self.refresh()
                self.failure = None
            except StockgateError as error:
                # The last known row stays: known orders go on without MySQL. Readiness shows why.
                self.failure = error
            decided = self.mode in {"hot", "db"}
            poll_ms = limits.SHARD_POLL_MS if decided else limits.SHARD_POLL_MS / _CLOSED_POLLS_FASTER
            await asyncio.sleep(poll_ms / 1000)
