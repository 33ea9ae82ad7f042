"""The sweeper of db mode: has the holds that are due released on the path on which MySQL decides.

MySQL says which orders to look at, by its own clock; whether one is due is decided under its lock. What could not be
released, because a key of it is held, stands in front of what is due later: the sweeper goes past it page by page, and
begins anew behind the last page.
"""

from collections.abc import Sequence
from typing import Final

import sql
from inventory.db_path import LIST_MAX, DbPath
from inventory.expiry import FIRST_PLACE, DueOrder, expiries
from inventory.hot_path import Failure
from inventory.operations import Operation, Result
from inventory.outcomes import CallStatus, Outcome
from kernel import limits
from kernel.errors import StoreUnavailable
from kernel.mysql_door import Database
from kernel.settings import Settings

PAGES_MAX: Final = 8
"""Pages that one sweep reads: the leader has other things to do in between."""

_SELECT_DUE: Final = sql.load("select_due_order_ids")
_OPEN_LINES: Final = tuple(range(1, LIST_MAX + 1))
"""Numbers of open lines that are looked up one by one; orders with more are few, and all of them are read."""


class DbSweeper:
    """Expiry while MySQL decides. Without effect in any other mode, and until the grace of the mode's beginning is over."""

    def __init__(self, path: DbPath, settings: Settings, database: Database, shard: int) -> None:
        self._path = path
        self._grace_ms = settings.hold_grace_ms
        self._database = database
        self._shard = shard
        self._after = FIRST_PLACE

    async def sweep(self, *, term: int = 0) -> int:
        """Look at what is due; how many orders were looked at. `term` is the leader's, 0 = none.

        Raises what the door raises, and StoreUnavailable where a page could not be decided: sweeping again goes on.
        """
        looked_at = 0
        for _ in range(PAGES_MAX):
            page = await self._read_page()
            if not await self._expire(expiries((order.tenant, order.order_id) for order in page), term):
                break
            looked_at += len(page)
            if len(page) < limits.EXPIRE_ORDERS_MAX:
                self._after = FIRST_PLACE
                break
            self._after = page[-1]
        return looked_at

    async def _read_page(self) -> list[DueOrder]:
        rows = await self._database.fetch_all(
            _SELECT_DUE,
            (self._shard, self._grace_ms, _OPEN_LINES, _OPEN_LINES[-1], *self._after, limits.EXPIRE_ORDERS_MAX),
        )
        return [DueOrder(*row) for row in rows]

    async def _expire(self, ops: Sequence[Operation], term: int) -> bool:
        """Have these looked at, in as many calls as their lines take; whether MySQL still decides for this leader."""
        while ops:
            called = await self._path.call(ops, term=term)
            if called.status != CallStatus.DECIDED:
                return False
            first = called.decisions[0]
            if isinstance(first, Failure):
                raise StoreUnavailable("mysql", first.outcome, first.detail)
            ops = [
                op
                for op, decision in zip(ops, called.decisions, strict=True)
                if isinstance(decision, Result) and decision.outcome is Outcome.SKIPPED
            ]
        return True
