"""One comparison of a shard: observe, compare, observe the suspects again, repair what is proven."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

import lua
import sql
from inventory.compare import FINDINGS_MAX, Findings, KeyClass, Reading, proven
from inventory.moves import Quantities
from inventory.observe import HeadMissing, opened_keys, read_keys
from inventory.shard_state import ShardRow, read_shard
from kernel.clock import Clock
from kernel.logs import get_logger
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys

COUNT_KEYS_EVERY_S: Final = 60.0
"""How often a full pass counts all keys of MySQL, to tell how many are cold; with a million keys that is no small read."""

log = get_logger()


class InFlightWatch:
    """Remembers since when each key in flight has not moved, to tell late from stuck."""

    def __init__(self, alarm_s: float) -> None:
        self._alarm_s = alarm_s
        self._since: dict[str, tuple[Reading, float]] = {}

    def stuck(self, readings: Sequence[Reading], now: float) -> list[tuple[Reading, float]]:
        """Take in the keys of one page; those in flight and unmoved for longer than the limit, with their seconds."""
        late: list[tuple[Reading, float]] = []
        for reading in readings:
            if reading.key_class is not KeyClass.IN_FLIGHT:
                self._since.pop(reading.inventory_key, None)
                continue
            before = self._since.get(reading.inventory_key)
            # Only MySQL's progress counts: a key that is sold without pause and never written is stuck too.
            if before is None or before[0].epoch != reading.epoch or before[0].mysql != reading.mysql:
                self._since[reading.inventory_key] = (reading, now)
            elif now - before[1] > self._alarm_s:
                late.append((reading, now - before[1]))
        return late


class Reconciler:
    """Compares one shard. Redis is moved toward MySQL by compare-and-set, or the shard's rebuild is asked for."""

    def __init__(
        self, database: Database, redis: RedisDoor, shard: int, *, clock: Clock, in_flight_alarm_s: float
    ) -> None:
        self._database = database
        self._redis = redis
        self._shard = shard
        self._clock = clock
        self._watch = InFlightWatch(in_flight_alarm_s)
        self._keys_known = 0
        self._keys_counted_at = float("-inf")

    async def run(self, wanted: Sequence[str], *, dry_run: bool, requested_by: str) -> Findings | None:
        """One pass over the named keys, or over all opened ones; None where no epoch is open.

        Raises what the doors raise; whatever was repaired until then stays repaired, and a repeat changes nothing more.
        """
        row = await read_shard(self._database, self._shard)
        if row.mode != "hot":
            return None
        keys = EpochKeys(self._shard, row.epoch)
        findings = Findings(row.epoch)
        try:
            async for page in self._pages(keys, wanted):
                await self._page(keys, page, findings, dry_run=dry_run, requested_by=requested_by)
            if not wanted:
                findings.classes[KeyClass.COLD] = max(0, await self._count_keys() - findings.classes.total())
        except HeadMissing:
            # The leader sees the same and opens a new epoch; nothing can be compared meanwhile.
            return None
        return findings

    async def _count_keys(self) -> int:
        now = self._clock.monotonic()
        if now - self._keys_counted_at > COUNT_KEYS_EVERY_S:
            rows = await self._database.fetch_all(sql.load("audit_count_balances"), (self._shard,))
            self._keys_known, self._keys_counted_at = int(rows[0][0]), now
        return self._keys_known

    async def _pages(self, keys: EpochKeys, wanted: Sequence[str]) -> AsyncIterator[list[str]]:
        if wanted:
            yield list(wanted)
            return
        async for page in opened_keys(self._redis, keys):
            yield page

    async def _page(
        self, keys: EpochKeys, page: Sequence[str], findings: Findings, *, dry_run: bool, requested_by: str
    ) -> None:
        readings = await read_keys(self._database, self._redis, keys, page)
        findings.classes.update(reading.key_class for reading in readings)
        for reading, seconds in self._watch.stuck(readings, self._clock.monotonic()):
            findings.stuck += 1
            held = reading.mysql is not None and reading.mysql.held
            findings.detail = findings.detail or await self._why_stuck(reading, seconds, held=held)
        suspects = {
            reading.inventory_key: reading
            for reading in readings
            if reading.key_class in {KeyClass.DRIFTED, KeyClass.LOST}
        }
        if not suspects:
            return
        for second in await read_keys(self._database, self._redis, keys, list(suspects)):
            first = suspects[second.inventory_key]
            if not proven(first, second):
                # One reading was a race: count the key as what the second one saw.
                findings.classes[first.key_class] -= 1
                findings.classes[second.key_class] += 1
                continue
            if len(findings.found) < FINDINGS_MAX:
                findings.found.append(second)
            if not dry_run:
                findings.repairs[second.key_class] += await self._repair(keys, second, requested_by)

    async def _repair(self, keys: EpochKeys, reading: Reading, requested_by: str) -> int:
        """Repair one proven key and leave its trace; 1 if this call changed something."""
        if reading.key_class is KeyClass.DRIFTED:
            changed = await correct(self._redis, keys, reading)
            kind, status = "correct", "DONE" if changed else "OVERTAKEN"
        else:
            reason = f"{reading.inventory_key} is lost in epoch {reading.epoch}"
            changed = await ask_for_rebuild(self._database, self._shard, reading.epoch, reason)
            kind, status = "rebuild_shard", "REQUESTED"
            if not changed:
                # Asked for already; another lost key of the same epoch needs no task of its own.
                return 0
        await self._trace(reading, kind, status, requested_by)
        log.warning(
            "repaired" if changed else "repair overtaken",
            kind=kind,
            inventory_key=reading.inventory_key,
            before=_image(reading.redis.quantities if reading.redis else None),
            after=_image(reading.mysql.quantities if reading.mysql else None),
        )
        return int(changed)

    async def _trace(self, reading: Reading, kind: str, status: str, requested_by: str) -> None:
        now_ms = self._clock.now_ms()
        async with self._database.transaction() as transaction:
            await transaction.execute(
                sql.load("record_repair"),
                (
                    self._shard,
                    kind,
                    reading.inventory_key,
                    reading.key_class.value,
                    status,
                    reading.epoch,
                    reading.mysql.seq if reading.mysql else 0,
                    _image(reading.redis.quantities if reading.redis else None),
                    _image(reading.mysql.quantities if reading.mysql else None),
                    "found by comparison, proven by a second reading",
                    requested_by,
                    now_ms,
                    now_ms if kind == "correct" else 0,
                ),
            )

    async def _why_stuck(self, reading: Reading, seconds: float, *, held: bool) -> str:
        """The sentence that says where a key in flight is waiting."""
        redis_seq = reading.redis.seq if reading.redis else 0
        mysql_seq = reading.mysql.seq if reading.mysql else 0
        where = f"{reading.inventory_key}: MySQL is at seq {mysql_seq} of {redis_seq} for {seconds:.0f} s"
        if held:
            return f"{where}: the key is held; look at its parked events and replay or reject them"
        row = await read_shard(self._database, self._shard)
        return f"{where}: {await self._where_the_log_waits(row)}"

    async def _where_the_log_waits(self, row: ShardRow) -> str:
        if row.alarm:
            return f"the persist worker has stopped the shard ({row.alarm}: {row.alarm_detail})"
        head = EpochKeys(self._shard, row.epoch).head
        m, confirmed = (int(value or 0) for value in await self._redis.command("HMGET", head, "m", "confirmed_m"))
        if confirmed < m:
            return f"entries {confirmed + 1} to {m} are not published: look at the leader and the broker"
        if row.applied_m < confirmed:
            return f"entries {row.applied_m + 1} to {confirmed} are in the queue: look at the persist worker"
        return "the log is applied and the key is still behind: audit the key"


async def correct(redis: RedisDoor, keys: EpochKeys, reading: Reading) -> bool:
    """Set a drifted key's quantities to MySQL's, if it still is what was read; False if something overtook it."""
    if reading.redis is None or reading.redis.quantities is None or reading.mysql is None:
        raise ValueError(f"{reading.inventory_key}: only a key that both stores have can be corrected")
    packed = msgspec.msgpack.encode([reading.redis.seq, list(reading.redis.quantities), list(reading.mysql.quantities)])
    return await redis.run(lua.load("correct"), [keys.head, keys.balance(reading.inventory_key)], [packed]) == 1


async def ask_for_rebuild(database: Database, shard: int, epoch: int, reason: str) -> bool:
    """Ask the leader to close the shard's epoch and open a new one; False if the epoch is over or it was asked already."""
    async with database.transaction() as transaction:
        parameters = (reason[:200], shard, epoch)
        return await transaction.execute(sql.load("update_shard_rebuild_wanted"), parameters) == 1


def _image(quantities: Quantities | None) -> str:
    return "absent" if quantities is None else msgspec.json.encode(quantities._asdict()).decode()
