"""What keeps an epoch's names in Redis small and in step with MySQL: trimming, eviction, the freezing of held keys.

None of it is urgent, and all of it rests on a reading of the shard row in this very epoch.
"""

from typing import Final

import sql
from inventory.head import Head
from kernel import limits
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor

EVICT_ROUNDS_MAX: Final = 4
HELD_KEYS_MAX: Final = 100_000
"""Held keys that are read at most; far more than an operator could look at."""
SCAN_COUNT: Final = 500


class Upkeep:
    """The housekeeping of one epoch under one leader. Methods raise what the doors raise, and LeadershipLost."""

    def __init__(
        self, *, head: Head, redis: RedisDoor, database: Database, log_bytes_max: int, evict_after_ms: int
    ) -> None:
        self._head = head
        self._redis = redis
        self._database = database
        self._log_bytes_max = log_bytes_max
        self._evict_after_ms = evict_after_ms
        self._held_version = -1
        # Every key that was frozen in this epoch, for a later leader too. It only grows, so that none is forgotten.
        self._ever_frozen = head.keys.prefix + "frozen"

    async def trim(self, applied_m: int, confirmed_m: int, log_bytes: int) -> None:
        """Let go of entries that MySQL has; above the bound of bytes, of what the queue has too.

        The entry at the lower of the two marks stays: the chain is checked there, and the next leader takes over there.
        """
        keep_from_m = min(applied_m, confirmed_m) - limits.TRIM_ENTRIES_KEPT
        if log_bytes > self._log_bytes_max:
            keep_from_m = confirmed_m
        if keep_from_m > 1:
            await self._head.trim(keep_from_m)

    async def evict(self, applied_m: int) -> int:
        """Let settled records go that MySQL has; how many."""
        before_ms = await self._head.now_ms() - self._evict_after_ms
        evicted = 0
        for _ in range(EVICT_ROUNDS_MAX):
            count = await self._head.evict(applied_m, before_ms, limits.EVICT_RECORDS_MAX)
            evicted += count
            if count < limits.EVICT_RECORDS_MAX:
                break
        return evicted

    async def freeze_held(self, held_version: int) -> int | None:
        """Freeze the keys that MySQL holds and unfreeze those it holds no more; how many are held, None = no change."""
        if held_version == self._held_version:
            return None
        rows = await self._database.fetch_all(sql.load("select_held_keys"), (self._head.keys.shard, HELD_KEYS_MAX))
        held: list[str] = [row[0] for row in rows]
        for first in range(0, len(held), SCAN_COUNT):
            await self._redis.command("SADD", self._ever_frozen, *held[first : first + SCAN_COUNT])
        await self._head.freeze(held, on=True)
        free = sorted(await self._frozen_before() - set(held))
        await self._head.freeze(free, on=False)
        self._held_version = held_version
        return len(held)

    async def _frozen_before(self) -> set[str]:
        found: set[str] = set()
        cursor = b"0"
        while True:
            cursor, members = await self._redis.command("SSCAN", self._ever_frozen, cursor, "COUNT", SCAN_COUNT)
            found.update(member.decode() for member in members)
            if cursor == b"0":
                return found
