"""What earlier epochs left in Redis: reported, then deleted at leisure, never relayed.

An entry that no leader published before its epoch was closed has no effect: nobody was told that it is safe. It is listed
in `stale_event` beside the messages that came too late, so that an operator can see whom `ack=redis` was promised to.
"""

import asyncio
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

import sql
from inventory.events import decode_changes
from inventory.shard_row import LeaderRow
from kernel.clock import Clock
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys

SCAN_COUNT: Final = 500
SCAN_PAUSE_S: Final = 0.02
"""A step of the scan looks at so many names and rests: other clients do not notice it."""
REPORT_ENTRIES_MAX: Final = 10_000
REPORT_PAGE_ENTRIES: Final = 100


def epoch_of(name: str, shard: int) -> int | None:
    """The epoch that a name of this shard carries; None for the register and for what is not ours."""
    prefix = f"{{sg:{shard}}}:"
    if not name.startswith(prefix):
        return None
    epoch, colon, _ = name.removeprefix(prefix).partition(":")
    return int(epoch) if colon and epoch.isdecimal() else None


class Leftovers:
    """Names of epochs before `row.epoch`. Methods raise what the doors raise; all may be done again."""

    def __init__(
        self,
        *,
        redis: RedisDoor,
        database: Database,
        shard: int,
        row: LeaderRow,
        clock: Clock,
        log: FilteringBoundLogger,
    ) -> None:
        self._redis = redis
        self._database = database
        self._shard = shard
        self._row = row
        self._clock = clock
        self._log = log

    async def clear(self) -> int:
        """Report and delete; how many entries were reported. Heads and logs go last, so that a second try finds them."""
        old: dict[int, EpochKeys] = {}
        reported = 0
        cursor = b"0"
        while True:
            cursor, names = await self._redis.command(
                "SCAN", cursor, "MATCH", f"{{sg:{self._shard}}}:*", "COUNT", SCAN_COUNT
            )
            doomed: list[str] = []
            for name in (raw.decode() for raw in names):
                epoch = epoch_of(name, self._shard)
                if epoch is None or epoch >= self._row.epoch:
                    continue
                if epoch not in old:
                    old[epoch] = EpochKeys(self._shard, epoch)
                    reported += await self._report(old[epoch])
                if name not in {old[epoch].head, old[epoch].log}:
                    doomed.append(name)
            if doomed:
                await self._redis.command("UNLINK", *doomed)
            if cursor == b"0":
                break
            await asyncio.sleep(SCAN_PAUSE_S)
        for keys in old.values():
            await self._redis.command("UNLINK", keys.log, keys.head)
        return reported

    async def _report(self, keys: EpochKeys) -> int:
        """List the entries behind the confirmed mark that MySQL never got."""
        confirmed, term = await self._redis.command("HMGET", keys.head, "confirmed_m", "term")
        after_m, term = int(confirmed or 0), int(term or 0)
        reported = seen = 0
        while seen < REPORT_ENTRIES_MAX:
            entries = await self._redis.read_stream(keys.log, after_m, REPORT_PAGE_ENTRIES, 0)
            if not entries:
                break
            for m, fields in entries:
                reported += await self._list_unless_applied(keys.epoch, m, term, fields)
            after_m, seen = entries[-1][0], seen + len(entries)
        if reported:
            self._log.warning("an earlier epoch left entries that nobody published", epoch=keys.epoch, entries=reported)
        return reported

    async def _list_unless_applied(self, epoch: int, m: int, term: int, fields: dict[bytes, bytes]) -> bool:
        payload, digest = fields.get(b"e", b""), fields.get(b"d", b"")
        if (place := _place(epoch, m, payload)) and await self._database.fetch_all(
            sql.load("select_ledger_entry"), place
        ):
            return False
        row = (self._shard, epoch, m, term, digest.decode("ascii", "replace"), payload, self._clock.now_ms())
        async with self._database.transaction() as transaction:
            await transaction.execute(sql.load("insert_unpublished_entry"), row)
        return True


def _place(epoch: int, m: int, payload: bytes) -> tuple[str | int, ...] | None:
    """What tells an entry in the ledger; None for one that cannot be read, which is listed: it is in nobody's way.

    A forked log gives other changes the same numbers: what they were for, and when, tells them apart.
    """
    try:
        change = decode_changes(payload)[0]
        event = change.events[0]
    except (msgspec.MsgspecError, IndexError):
        return None
    return event.inventory_key, event.seq, epoch, m, change.tenant, change.ref, change.at_ms
