"""The sweeper: releases the holds that are due, those too that only MySQL knows.

What is due is decided by the script and Redis' clock alone; the sweeper only says which orders to look at. An order of an
earlier epoch is in Redis only if somebody asked for it, so MySQL is read for those, page by page in order of their due
time. Their number only shrinks while an epoch lasts, and a page that was read is waited through before the next.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, NamedTuple

import sql
from inventory.hot_path import HotPath
from inventory.moves import Move
from inventory.operations import Operation, Result
from inventory.outcomes import Outcome
from kernel import limits
from kernel.errors import StoreUnavailable
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys

PAGE_ORDERS_MAX: Final = 5_000
REREAD_MS: Final = 30_000
"""MySQL is read from the beginning again this long after its last page: what was refused then is tried again."""
REREAD_EMPTY_MS: Final = 300_000
"""The same after it had none: an operator's replay of a held key can still bring one."""
LOADED_ROUNDS_MAX: Final = 8
"""Full batches of loaded orders that one sweep takes before it looks at the others."""


class DueOrder(NamedTuple):
    """An order with an open hold, and when it is due (UTC epoch ms, without the epoch's grace)."""

    due_ms: int
    tenant: str
    order_id: str


FIRST_PLACE: Final = DueOrder(-1, "", "")


def expiries(orders: Iterable[tuple[str, str]]) -> list[Operation]:
    """One EXPIRE for each (tenant, order_id), each a request of its own."""
    return [
        Operation(kind=Move.EXPIRE, group=group, tenant=tenant, ref=order_id, actor="expiry")
        for group, (tenant, order_id) in enumerate(orders)
    ]


def order_of_member(member: bytes) -> tuple[str, str]:
    """Tenant and order id of a member of the `due` set (`o:<tenant>/<id>`); a tenant has no slash."""
    tenant, _, order_id = member.decode().removeprefix("o:").partition("/")
    return tenant, order_id


class Sweeper:
    """Expiry in one epoch. `opened_ms` and the grace say from when on anything can be due, by Redis' clock."""

    def __init__(
        self,
        *,
        hot_path: HotPath,
        redis: RedisDoor,
        database: Database,
        keys: EpochKeys,
        term: int,
        not_before_ms: int,
    ) -> None:
        self._hot_path = hot_path
        self._redis = redis
        self._database = database
        self._keys = keys
        self._term = term
        self._not_before_ms = not_before_ms
        self._unloaded: deque[DueOrder] = deque()
        self._page_after = FIRST_PLACE
        self._read_again_ms = 0

    async def sweep(self, now_ms: int) -> int:
        """Look at what is due by Redis' clock; how many orders were looked at. Raises StoreUnavailable."""
        if now_ms < self._not_before_ms:
            return 0
        return await self._sweep_loaded(now_ms) + await self._sweep_unloaded(now_ms)

    async def _sweep_loaded(self, now_ms: int) -> int:
        looked_at, stuck = 0, 0
        for _ in range(LOADED_ROUNDS_MAX):
            # What could not be released (a frozen key, say) is still in front and must not stand in the way of the rest.
            members: Sequence[bytes] = await self._redis.command(
                "ZRANGEBYSCORE", self._keys.due, "-inf", now_ms, "LIMIT", stuck, limits.EXPIRE_ORDERS_MAX
            )
            if members:
                stuck += await self._expire([order_of_member(member) for member in members])
                looked_at += len(members)
            if len(members) < limits.EXPIRE_ORDERS_MAX:
                break
        return looked_at

    async def _sweep_unloaded(self, now_ms: int) -> int:
        if not self._unloaded and now_ms >= self._read_again_ms:
            await self._read_page(now_ms)
        looked_at = 0
        while self._unloaded and self._unloaded[0].due_ms <= now_ms and looked_at < limits.BATCH_QUEUE_OPERATIONS_MAX:
            due = [order for order in islice(self._unloaded, limits.EXPIRE_ORDERS_MAX) if order.due_ms <= now_ms]
            await self._expire([(order.tenant, order.order_id) for order in due])
            for _ in due:
                self._unloaded.popleft()
            looked_at += len(due)
        return looked_at

    async def _read_page(self, now_ms: int) -> None:
        """Read the next page; after the last one, or an empty one, begin again some time later."""
        rows = await self._database.fetch_all(
            sql.load("select_open_orders_of_earlier_epochs"),
            (self._keys.shard, self._keys.epoch, *self._page_after, PAGE_ORDERS_MAX),
        )
        self._unloaded.extend(DueOrder(*row) for row in rows)
        if len(rows) == PAGE_ORDERS_MAX:
            self._page_after = self._unloaded[-1]
        else:
            self._page_after = FIRST_PLACE
            self._read_again_ms = now_ms + (REREAD_MS if self._unloaded else REREAD_EMPTY_MS)

    async def _expire(self, orders: Sequence[tuple[str, str]]) -> int:
        """Let the script look at these; how many it could not bring to an end. Raises StoreUnavailable if none."""
        decided = await self._hot_path.decide(expiries(orders), term=self._term)
        failures = [decision for decision in decided.decisions if not isinstance(decision, Result)]
        if len(failures) == len(orders):
            raise StoreUnavailable("redis", failures[0].outcome, failures[0].detail)
        done = [decision for decision in decided.decisions if isinstance(decision, Result)]
        return len(failures) + sum(decision.outcome is not Outcome.DONE for decision in done)
