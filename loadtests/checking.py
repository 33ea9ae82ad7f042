"""The end of a run: wait until nothing is under way, read what the system says, hold the books against it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Self, TypeVar

from client.answers import Answer, Done, Refused
from client.failures import ClientError
from client.replies import Order, Quantities
from client.retries import Retries
from client.stockgate import StockgateClient
from loadtests.books import CHANGE_REASON, Books, ChangeBook, KeySeen, OrderSeen, Verdict, compare

SETTLE_LIMIT_S: Final = 90.0
"""Also covers the grace that a newly opened epoch gives to every hold."""
AUDIT_LIMIT_S: Final = 180.0
POLL_S: Final = 0.2
READ_CONCURRENCY: Final = 32
QUERY_KEYS: Final = 500

Item = TypeVar("Item")


class Checker:
    """The clients that prepare a run and judge it. Use as an async context manager."""

    def __init__(self, url: str, api_keys: dict[str, str]) -> None:
        quick, patient = Retries(deadline_s=60.0), Retries(deadline_s=AUDIT_LIMIT_S, attempt_s=AUDIT_LIMIT_S)
        self.orders = StockgateClient(url, api_keys["orders"], retries=quick)
        self.inventory = StockgateClient(url, api_keys["inventory"], retries=quick)
        # An audit reads everything there is: cutting it short and asking anew would only pile up audits.
        self.ops = StockgateClient(url, api_keys["ops"], retries=patient)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in (self.orders, self.inventory, self.ops):
            await client.aclose()

    async def create(self, stock: Mapping[str, int]) -> None:
        """Make the keys, each with its units. Raises SystemExit with the refusal, ClientError without an answer."""

        async def one(key: str) -> None:
            answer = await self.inventory.create_inventory(
                key, item_id="load-test", init_quantity=stock[key], request_no=f"create-{key}"
            )
            if isinstance(answer, Refused):
                raise SystemExit(f"{key} was refused: {answer.code}: {answer.problem.detail}")

        await _each(one, list(stock))

    async def judge(self, books: Books, stock: dict[str, int]) -> Verdict:
        """What is wrong. Raises ClientError where the system does not answer."""
        await _each(self._learn, [change for change in books.changes if change.told == "unanswered"])
        orders = await self._read_orders([book.order_id for book in books.orders])
        await self._until_expired([book.order_id for book in books.orders if book.expires], orders)
        await self._until_applied()
        verdict = compare(books, orders, await self._read_keys(list(stock)), stock)
        for check in (await self.ops.audit()).checks:
            if not check.ok:
                verdict.drift += max(1, len(check.violations))
                verdict.find(f"audit: {check.name}: {check.violations[:3]}")
        return verdict

    async def _learn(self, change: ChangeBook) -> None:
        """Ask once more for a change that nobody answered: the request number says which it is."""
        try:
            answer = await self._repeat(change)
        except ClientError:
            return  # stays unanswered, which the verdict counts
        change.told = "done" if isinstance(answer, Done) else "refused"

    async def _repeat(self, change: ChangeBook) -> Answer[Quantities]:
        key, qty, number = change.inventory_key, change.qty, change.request_no
        if change.kind == "adjust":
            return await self.inventory.adjust(key, qty, request_no=number, reason=CHANGE_REASON)
        call = self.inventory.lock if change.kind == "lock" else self.inventory.unlock
        return await call(key, qty, request_no=number, reason=CHANGE_REASON)

    async def _read_orders(self, order_ids: Sequence[str]) -> dict[str, OrderSeen]:
        seen: dict[str, OrderSeen] = {}

        async def one(order_id: str) -> None:
            answer = await self.orders.order(order_id)
            if isinstance(answer, Done):
                seen[order_id] = _order_seen(answer.value)

        await _each(one, order_ids)
        return seen

    async def _until_expired(self, order_ids: Sequence[str], orders: dict[str, OrderSeen]) -> None:
        """Read the short holds again until each has been given back; those that never are stay RESERVED."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        waiting = [each for each in order_ids if each in orders and orders[each].status == "RESERVED"]
        while waiting and time.monotonic() < deadline:
            await asyncio.sleep(POLL_S)
            orders.update(await self._read_orders(waiting))
            waiting = [each for each in waiting if orders[each].status == "RESERVED"]

    async def _until_applied(self) -> None:
        """Wait until MySQL has the whole log. Raises SystemExit where it does not come to that."""
        deadline = time.monotonic() + SETTLE_LIMIT_S
        while True:
            shards = (await self.ops.status()).shards
            if all(shard.log_head_m is not None and shard.log_head_m == shard.applied_m for shard in shards):
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"the log was not applied within {SETTLE_LIMIT_S:.0f} s: {shards}")
            await asyncio.sleep(POLL_S)

    async def _read_keys(self, keys: Sequence[str]) -> dict[str, KeySeen]:
        seen: dict[str, KeySeen] = {}
        for start in range(0, len(keys), QUERY_KEYS):
            asked = keys[start : start + QUERY_KEYS]
            for key, answer in zip(asked, await self.inventory.query_inventory(asked), strict=True):
                if isinstance(answer, Done):
                    found = answer.value
                    seen[key] = KeySeen(
                        found.available, found.reserved, found.sold, found.consumed, found.locked, found.total
                    )
        return seen


def _order_seen(order: Order) -> OrderSeen:
    lines = {line.inventory_key: line.qty for line in order.lines}
    return OrderSeen(order.status, lines)


async def _each(work: Callable[[Item], Awaitable[None]], items: Sequence[Item]) -> None:
    """Do the work for every item, a bounded number at once; the first failure ends it."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(worker() for _ in range(min(READ_CONCURRENCY, len(items)))))
