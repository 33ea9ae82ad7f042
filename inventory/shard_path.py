"""Who decides: Redis while the shard is hot, MySQL while it is in db mode. One interface for both.

The mode is the one of the row that was read last. A path that finds it out of date, by a fence or by the row's lock, has
decided nothing: the row is read again, and the other one is asked where it is its turn.
"""

from collections.abc import Sequence
from contextlib import suppress

from inventory.db_path import DbPath
from inventory.hot_path import Called, HotPath, Need, Prepared
from inventory.operations import Operation
from inventory.outcomes import CallStatus
from inventory.shard_state import ShardWatch
from kernel.errors import StockgateError


class ShardPath:
    """One shard's two paths, for the batcher."""

    def __init__(self, watch: ShardWatch, hot: HotPath, db: DbPath) -> None:
        self._watch = watch
        self._hot = hot
        self._db = db

    @property
    def decided_by_mysql(self) -> bool:
        """Whether the shard is in db mode, as far as is known here."""
        return self._watch.mode == "db"

    @property
    def epoch(self) -> int:
        """As `HotPath.epoch`."""
        return self._hot.epoch

    @property
    def looks_up(self) -> bool:
        """Whether new orders have to be looked up first. MySQL itself needs no look-up."""
        return not self.decided_by_mysql and self._hot.looks_up

    async def prepare(self, needs: Sequence[Need]) -> Prepared:
        """As `HotPath.prepare`. What Redis lacked is of no interest any more once MySQL decides: it is asked at once."""
        if self.decided_by_mysql:
            return Prepared(0, [None] * len(needs))
        return await self._hot.prepare(needs)

    async def call(self, ops: Sequence[Operation], *, proven_in: int) -> Called:
        """Have the operations decided; as `HotPath.call`."""
        if not self.decided_by_mysql:
            called = await self._hot.call(ops, proven_in=proven_in)
            # Told that it is not Redis' turn, it has read the row again.
            if called.status is CallStatus.DECIDED or not self.decided_by_mysql:
                return called
            return await self._call_db(ops)
        called = await self._call_db(ops)
        if called.status is CallStatus.DECIDED:
            return called
        with suppress(StockgateError):
            await self._watch.refresh()
        if not self._watch.hot_epoch:
            return called
        # Proofs were made for an epoch that is over.
        return await self._hot.call(ops, proven_in=0)

    async def _call_db(self, ops: Sequence[Operation]) -> Called:
        return (await self._db.call(ops))._replace(store="mysql")
