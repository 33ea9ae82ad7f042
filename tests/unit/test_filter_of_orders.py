"""Filling the filter of orders while an operator turns a parked change into an order."""

from collections.abc import Sequence
from typing import Any, cast

from inventory.filter_of_orders import FilterOfOrders
from inventory.head import Head
from kernel.logs import get_logger
from kernel.mysql_door import Database, Statement
from kernel.redis_keys import EpochKeys


class Filter:
    """The head's part in it: what was added."""

    keys = EpochKeys(0, 1)

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.complete = False

    async def filter_is_complete(self) -> bool:
        return self.complete

    async def fill_filter(self, orders: Sequence[str], *, begins: bool = False, completes: bool = False) -> bool:
        self.orders = [*([] if begins else self.orders), *orders]
        self.complete = completes
        return True


class Replayed:
    """MySQL with one parked order, which is replayed right after the first look."""

    def __init__(self) -> None:
        self.looks = 0

    async def fetch_all(self, statement: Statement, _params: Sequence[Any]) -> list[tuple[str, str]]:
        self.looks += 1
        is_parked = self.looks == 1
        return [("shop", "held")] if is_parked is ("inventory_parked_event" in statement) else []


async def test_an_order_that_is_replayed_meanwhile_is_in_it() -> None:
    head = Filter()
    filling = FilterOfOrders(head=cast("Head", head), database=cast("Database", Replayed()), log=get_logger())
    assert await filling.fill()
    assert "o:shop/held" in head.orders
    assert head.complete
