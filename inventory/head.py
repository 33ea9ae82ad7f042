"""The head record as its leader moves it: each method is one script, and each names the leader's term.

A head that bears a higher term, or is not the one this leader took over, ends the leadership.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

import lua
from inventory.events import genesis
from kernel import limits, redis_keys
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys


class LeadershipLost(Exception):
    """A doubt: this leader gives up its connection, and with it the lock, and somebody starts anew."""


class ChainBroken(LeadershipLost):
    """Redis is not the continuation of what was published."""


class Position(NamedTuple):
    """A place in the log: after entry `m`, whose digest is `digest` (m 0: genesis)."""

    m: int
    digest: str


class HeadStatus(IntEnum):
    """What the leader's scripts say of the head, first of all."""

    NO_HEAD = 1
    STALE_TERM = 3
    NOT_CONTINUATION = 4


class HeadState(NamedTuple):
    """The head as a script saw it. Times are UTC epoch ms by Redis' clock."""

    m: int
    digest: str
    confirmed_m: int
    fenced: bool
    opened_ms: int
    evicted_m: int


class LogSize(NamedTuple):
    """Bytes of payload: in the log as it stands, and of them not confirmed."""

    log_bytes: int
    unconfirmed_bytes: int


FREEZE_KEYS_MAX: Final = 500
"""Balances that one call of the freezing script names."""
FILTER_LOST: Final = -6
_pack: Final = msgspec.msgpack.Encoder().encode
_decode_state: Final = msgspec.msgpack.Decoder(list[Any]).decode


async def draw_epoch(door: RedisDoor, shard: int, term: int, above: int, grace_ms: int) -> int:
    """Create the fenced head of a new epoch, above `above` and above all that this Redis ever drew; its number."""
    epoch = above + 1
    while True:
        keys = EpochKeys(shard, epoch)
        args = (epoch, term, genesis(shard, epoch), grace_ms)
        drawn: int = await door.run(lua.load("open_head"), (keys.head, redis_keys.register(shard)), args)
        if drawn == 0:
            return epoch
        epoch = max(epoch, drawn) + 1


class Head:
    """The head of one epoch, for the leader of one term.

    Methods raise StoreUnavailable where Redis could not be asked or did not answer, and LeadershipLost where the head is
    not this leader's any more. Positions outside of the log count as another log.
    """

    def __init__(self, *, door: RedisDoor, namer: RedisDoor, keys: EpochKeys, term: int) -> None:
        self.keys = keys
        self.term = term
        self._door = door
        self._namer = namer
        self._channel = redis_keys.confirmed_channel(keys.shard)
        self._checked: dict[RedisDoor, int] = {}

    async def take_over(self, applied: Position) -> HeadState | None:
        """Raise the term in the head if its log holds what MySQL has applied; None if it is not the continuation."""
        reply = await self._door.run(lua.load("take_over"), (self.keys.head, self.keys.log), (self.term, *applied))
        try:
            return self._state(reply)
        except ChainBroken:
            return None

    async def check(self, published: Position) -> HeadState:
        """See that the head is still this leader's, and its log still holds what was published; raises ChainBroken."""
        keys = (self.keys.head, self.keys.log)
        return self._state(await self._door.run(lua.load("check_chain"), keys, (self.term, *published)))

    async def check_after_reconnect(self, door: RedisDoor, published: Position) -> None:
        """Check again if this door has a new connection: it may lead to another Redis, or to an older one."""
        generation = door.generation
        if self._checked.get(door) != generation:
            await self.check(published)
            self._checked[door] = generation

    async def confirm(self, last: Position, naming: bytes) -> None:
        """Move the confirmed mark to an entry and publish the naming, in one step; nothing if it is there already.

        Raises ChainBroken if the log holds another entry there.
        """
        keys = (self.keys.head, self.keys.log)
        args = (self.term, *last, self._channel, naming)
        self._accept(await self._namer.run(lua.load("confirm"), keys, args))

    async def fence(self, on: bool) -> None:
        """Forbid or allow decisions."""
        self._accept(await self._door.run(lua.load("fence"), (self.keys.head,), (self.term, int(on))))

    async def trim(self, keep_from_m: int) -> None:
        """Let go of the entries before this one."""
        self._accept(await self._door.run(lua.load("trim"), (self.keys.head, self.keys.log), (self.term, keep_from_m)))

    async def evict(self, applied_m: int, before_ms: int, limit: int) -> int:
        """Let go of settled records that MySQL has and that last changed at `before_ms` or before; how many."""
        keys = (self.keys.head, self.keys.settled)
        args = (self.term, applied_m, before_ms, limit)
        return self._accept(await self._door.run(lua.load("evict"), keys, args))

    async def filter_is_complete(self) -> bool:
        """Whether the filter has every order that MySQL knew when the epoch began."""
        complete, size = await self._door.commands((("HGET", self.keys.head, "filter"), ("STRLEN", self.keys.filter)))
        return complete == b"1" and size == limits.FILTER_BYTES

    async def fill_filter(self, orders: Sequence[str], *, begins: bool = False, completes: bool = False) -> bool:
        """Add orders, by their records' names after the prefix; False if the filter that was begun is lost."""
        keys = (self.keys.head, self.keys.filter)
        args = (self.term, int(begins), _pack(orders), int(completes))
        answer: int = await self._door.run(lua.load("fill_filter"), keys, args)
        return answer != FILTER_LOST and self._accept(answer) >= 0

    async def freeze(self, inventory_keys: Sequence[str], on: bool) -> None:
        """Forbid or allow changes of these keys; those that are not loaded are passed over."""
        for first in range(0, len(inventory_keys), FREEZE_KEYS_MAX):
            names = [self.keys.balance(key) for key in inventory_keys[first : first + FREEZE_KEYS_MAX]]
            self._accept(await self._door.run(lua.load("freeze"), (self.keys.head, *names), (self.term, int(on))))

    async def size(self) -> LogSize:
        """How much the log holds. Raises ChainBroken without a head."""
        appended, confirmed = await self._door.command("HMGET", self.keys.head, "appended_bytes", "confirmed_bytes")
        if appended is None or confirmed is None:
            raise ChainBroken("the head is gone")
        first: Any = await self._door.command("XRANGE", self.keys.log, "-", "+", "COUNT", 1)
        before = 0
        if first:
            fields = dict(zip(first[0][1][::2], first[0][1][1::2], strict=True))
            before = int(fields[b"b"]) - len(fields[b"e"])
        return LogSize(int(appended) - before if first else 0, int(appended) - int(confirmed))

    async def now_ms(self) -> int:
        """Redis' clock, UTC epoch ms."""
        return await redis_now_ms(self._door)

    def _state(self, reply: bytes) -> HeadState:
        status, *rest = _decode_state(reply)
        self._accept(-status)
        m, digest, confirmed_m, fence, opened_ms, evicted_m = rest
        return HeadState(m, digest, confirmed_m, fence == 1, opened_ms, evicted_m)

    def _accept(self, answer: int) -> int:
        """Hand a count through; raise for a refusal, which is a status as a negative number."""
        if answer >= 0:
            return answer
        match HeadStatus(-answer):
            case HeadStatus.NO_HEAD:
                raise ChainBroken(f"epoch {self.keys.epoch} has no head")
            case HeadStatus.NOT_CONTINUATION:
                raise ChainBroken(f"epoch {self.keys.epoch}: the log is not the one that was published")
            case HeadStatus.STALE_TERM:
                raise LeadershipLost(f"the head bears another term than {self.term}")


async def redis_now_ms(door: RedisDoor) -> int:
    """Redis' clock, UTC epoch ms; raises StoreUnavailable."""
    seconds, microseconds = await door.command("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000
