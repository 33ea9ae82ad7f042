"""Fills the epoch's filter with every order that MySQL knows, so that a new order is known to be new without a look-up.

What the worker writes while MySQL is read was decided in this epoch: it is in Redis, or it was evicted and `evict.lua` put it
into the filter. Changes of earlier epochs that wait for an operator may become orders meanwhile, never the other way round: so
they are read first, and one pass over each is enough, however long it takes.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

from structlog.typing import FilteringBoundLogger

import sql
from inventory.head import Head
from kernel import limits
from kernel.mysql_door import Database

PAGE_PAUSE_S: Final = 0.002
"""Between two pages, so that callers come first in both stores."""


class FilterOfOrders:
    """The filter of one epoch, for its leader."""

    def __init__(self, *, head: Head, database: Database, log: FilteringBoundLogger) -> None:
        self._head = head
        self._database = database
        self._log = log

    async def fill(self) -> bool:
        """Make the filter complete if it is not; whether it is now. Raises what the doors raise, and LeadershipLost."""
        if await self._head.filter_is_complete():
            return True
        # Empty before the first row is read: what leaves Redis from now on is added to this very filter.
        await self._head.fill_filter((), begins=True)
        orders = 0
        async for page in self._pages():
            orders += len(page)
            if not await self._head.fill_filter(page):
                self._log.warning("the filter of orders was lost while it was filled")
                return False
            await asyncio.sleep(PAGE_PAUSE_S)
        complete = await self._head.fill_filter((), completes=True)
        if complete:
            self._log.info("the filter of orders is complete", orders=orders)
        return complete

    async def _pages(self) -> AsyncGenerator[Sequence[str]]:
        """Records' names of all orders in MySQL, those too of which only a change is there that waits for an operator."""
        shard, size = self._head.keys.shard, limits.FILTER_PAGE_ORDERS
        for statement in (sql.load("select_parked_order_ids"), sql.load("select_order_ids")):
            tenant = order_id = ""
            while True:
                rows = await self._database.fetch_all(statement, (shard, tenant, tenant, order_id, size))
                if rows:
                    yield [f"o:{row[0]}/{row[1]}" for row in rows]
                if len(rows) < size:
                    break
                tenant, order_id = rows[-1]
