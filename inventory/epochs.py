"""The steps by which a term begins, an epoch is taken over, closed and opened.

Each step leaves the row, the queue and the head so that any later leader can go on from there: a term that was drawn and
never announced is passed over, a head that was created and never made hot is left behind, a row that is hot with a fenced
head is unfenced by whoever comes next, and CLOSE may be sent any number of times.
"""

from asyncio import sleep
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from structlog.typing import FilteringBoundLogger

from inventory import mode_switch
from inventory.events import WIRE_VERSION, LogMessage, MessageType, Naming, chain, encode_message, encode_naming
from inventory.head import Head, HeadState, LeadershipLost, Position, draw_epoch, redis_now_ms
from inventory.mode_switch import Step
from inventory.shard_row import LeaderRow, begin_term, read_row, set_hot
from kernel import failpoints, limits
from kernel.amqp_door import Publisher
from kernel.amqp_topology import log_queue
from kernel.clock import Clock
from kernel.errors import Retryable, StockgateError, StoreUnavailable
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.settings import Settings

POLL_FAST_S: Final = 0.01
POLL_SLOW_S: Final = 0.1
"""The row is read this often while a TERM or CLOSE travels: first fast, for a worker that has nothing else to do."""
POLLS_FAST: Final = 100
SEND_AGAIN_S: Final = 2.0
SEND_AGAIN_MAX_S: Final = 30.0
"""A TERM or CLOSE that had no effect is sent again, in pauses that double: a purge may have taken it."""
CLOCK_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Steps:
    """What the steps of one shard work with. Their failures end the leadership: somebody starts anew."""

    settings: Settings
    shard: int
    database: Database
    redis: RedisDoor
    publisher: Publisher
    clock: Clock
    log: FilteringBoundLogger

    async def begin_term(self) -> LeaderRow:
        """Draw a term and wait until the worker drops everything older; the row that counts from then on."""
        read = await read_row(self.database, self.shard)
        term = await begin_term(self.database, self.shard, read)
        if term is None:
            raise LeadershipLost("somebody else has begun a term")
        failpoints.hit("leader.after_term_row")
        message = LogMessage(WIRE_VERSION, MessageType.TERM, self.shard, read.epoch, term)
        return await self._send_until(
            message, term, lambda row: row.applied_term == term, after_send="leader.after_term_sent"
        )

    async def take_over(self, row: LeaderRow, head: Head) -> HeadState | None:
        """Raise the term in the head and name what MySQL has already; None where Redis is not the continuation."""
        applied = Position(row.applied_m, row.applied_digest)
        state = await head.take_over(applied)
        if state is None:
            return None
        failpoints.hit("leader.after_take_over")
        if state.confirmed_m < applied.m:
            await self._name_applied(head, state.confirmed_m, applied)
        return state

    async def close_lost(self, row: LeaderRow, head: Head, next_mode: str, why: str) -> None:
        """Close an epoch without its Redis, for the reason `why`: what MySQL has is all there is.

        That is all that anybody was told under `ack=broker`, for the term began behind it in the queue. Returns without
        having closed anything where a switch to db was aborted.
        """
        self.log.warning(
            "epoch is closed without its Redis", why=why, epoch=row.epoch, applied_m=row.applied_m, next_mode=next_mode
        )
        fenced = await self._fence_what_answers(row, head)
        if next_mode == "db":
            if fenced:
                await self.note_step(row, "fence")
            await self.note(row, f"{why}: closed behind entry {row.applied_m} of epoch {row.epoch}, all that MySQL has")
            if not await self.claim_close(row):
                self.log.warning("the switch was aborted", switch=row.switch_id)
                return
        await self.close(row, row.applied_m, next_mode)

    async def note_step(self, row: LeaderRow, step: Step) -> bool:
        """Note a step of the row's switch; False where that does not run any more."""
        return await mode_switch.append_step(self.database, self.shard, row.switch_id, row.term, step)

    async def note(self, row: LeaderRow, detail: str) -> None:
        """Say in the row's switch why it waits, or what is particular about it."""
        await mode_switch.note(self.database, row.switch_id, detail)

    async def claim_close(self, row: LeaderRow) -> bool:
        """Whether CLOSE may be published for the row's switch: nobody has aborted it, and nobody can from now on."""
        claimed = await mode_switch.claim_close(self.database, self.shard, row.switch_id, row.term)
        if claimed:
            failpoints.hit("leader.after_claim_close")
        return claimed

    async def close(self, row: LeaderRow, after_m: int, next_mode: str) -> LeaderRow:
        """Send CLOSE as the last message of the epoch, and again if need be, until the row has moved."""
        failpoints.hit("leader.before_close")
        message = LogMessage(
            WIRE_VERSION, MessageType.CLOSE, self.shard, row.epoch, row.term, after_m=after_m, next_mode=next_mode
        )
        return await self._send_until(
            message,
            row.term,
            lambda now: now.mode != "hot" or now.epoch != row.epoch,
            after_send="leader.after_close_sent",
        )

    async def open(self, row: LeaderRow) -> None:
        """Draw an epoch, create its head fenced, and make the row hot. Whoever takes it over unfences it."""
        await self._wait_for_agreeing_clocks()
        grace_ms = self.settings.hold_grace_ms
        epoch = await draw_epoch(self.redis, self.shard, row.term, row.epoch, grace_ms)
        failpoints.hit("leader.after_draw")
        if not await set_hot(self.database, self.shard, row, epoch, self.clock.now_ms()):
            raise LeadershipLost("the row moved while an epoch was opened")
        failpoints.hit("leader.after_row_hot")
        self.log.info("epoch opened", epoch=epoch, term=row.term)

    async def obstacle_to_open(self) -> str:
        """Why no epoch can be opened now, empty where nothing is known to speak against it. Raises for MySQL's trouble."""
        try:
            skew_ms = await self.clock_skew_ms()
        except StoreUnavailable as away:
            if away.store != "redis":
                raise
            return f"Redis is out of reach: {away}"
        if abs(skew_ms) > limits.CLOCK_SKEW_MS_MAX:
            return "the clocks of Redis and MySQL disagree"
        return ""

    async def clock_skew_ms(self) -> int:
        """How far Redis' clock is ahead of MySQL's, in ms; both are asked now."""
        redis_ms, redis_at = await redis_now_ms(self.redis), self.clock.monotonic()
        row = await read_row(self.database, self.shard)
        return round(redis_ms - row.now_ms + (self.clock.monotonic() - redis_at) * 1000)

    async def _wait_for_agreeing_clocks(self) -> None:
        while abs(skew_ms := await self.clock_skew_ms()) > limits.CLOCK_SKEW_MS_MAX:
            self.log.error("no epoch is opened: the clocks of Redis and MySQL disagree", skew_ms=skew_ms)
            await sleep(CLOCK_PAUSE_S)

    async def _name_applied(self, head: Head, confirmed_m: int, applied: Position) -> None:
        """Name what an earlier leader published and could not name any more: MySQL has it."""
        after_m = confirmed_m
        digest = ""
        while after_m < applied.m:
            count = min(limits.RELAY_READ_ENTRIES_MAX, applied.m - after_m)
            read = await self.redis.read_stream(head.keys.log, after_m, count, 0)
            if not read:
                raise LeadershipLost("entries that MySQL has have left the log")
            named: list[tuple[int, str]] = []
            for m, fields in read:
                if digest and chain(digest, fields[b"e"]) != fields[b"d"].decode():
                    raise LeadershipLost(f"entry {m} does not follow the one before")
                digest = fields[b"d"].decode()
                named.append((m, digest))
            await head.confirm(Position(*named[-1]), encode_naming(Naming(head.keys.epoch, named)))
            after_m = named[-1][0]

    async def _fence_what_answers(self, row: LeaderRow, head: Head) -> bool:
        """Stop decisions that nobody would ever relay; a Redis that is away, empty or damaged decides nothing anyway."""
        fenced = False
        try:
            await head.fence(on=True)
            fenced = True
            confirmed_m = int(await self.redis.command("HGET", head.keys.head, "confirmed_m"))
            if confirmed_m > row.applied_m:
                # Only a queue that lost confirmed messages, and a log that had to let go of them, come to this.
                self.log.error(
                    "confirmed entries are lost", epoch=row.epoch, from_m=row.applied_m + 1, to_m=confirmed_m
                )
        except (StockgateError, LeadershipLost) as failure:
            self.log.info("head was not fenced", epoch=row.epoch, reason=str(failure))
        failpoints.hit("leader.after_fence")
        return fenced

    async def _send_until(
        self, message: LogMessage, term: int, done: Callable[[LeaderRow], bool], *, after_send: str
    ) -> LeaderRow:
        """Publish a message and read the row until it is as wanted; MySQL may be away meanwhile."""
        queue, body = log_queue(self.shard), encode_message(message)
        send_at, pause_s, polls = self.clock.monotonic(), SEND_AGAIN_S, 0
        while True:
            if self.clock.monotonic() >= send_at:
                await self.publisher.publish(queue, body, message_type=message.type.name)
                failpoints.hit(after_send)
                send_at, pause_s = self.clock.monotonic() + pause_s, min(SEND_AGAIN_MAX_S, 2 * pause_s)
            row = await self._read_row_if_there()
            if row is not None:
                if row.term != term:
                    raise LeadershipLost(f"term {row.term} has begun")
                if done(row):
                    return row
            polls += 1
            await sleep(POLL_FAST_S if polls < POLLS_FAST else POLL_SLOW_S)

    async def _read_row_if_there(self) -> LeaderRow | None:
        try:
            return await read_row(self.database, self.shard)
        except (StoreUnavailable, Retryable):
            return None
