"""Order services at their daily work: whole lives of orders, batches of them, and a look at the shelf now and then."""

import random
from typing import Any, Final
from urllib.parse import quote

from locust import between, task

from loadtests.books import OrderBook
from loadtests.users import PLAN, SHORT, OrderCaller, Told, new_order, reserve_body

LINES_MAX: Final = 5
QTY_MAX: Final = 3
BATCH_ORDERS: Final = 10
WALK_AWAY_S: Final = 2
LONGER_S: Final = 3_600


def some_lines() -> dict[str, int]:
    """One to five keys. The first ones are asked for most, so that some shelves run empty."""
    count = random.randint(1, LINES_MAX)
    keys = PLAN.inventory_keys
    numbers = {min(random.randrange(len(keys)), random.randrange(len(keys))) for _ in range(count)}
    return {keys[number]: random.randint(1, QTY_MAX) for number in numbers}


class Customer(OrderCaller):
    """Holds, thinks, reads, pays, cancels, sends back, or walks away."""

    wait_time = between(0.05, 0.25)

    @task(12)
    def whole_life(self) -> None:
        """One order from the hold to its end."""
        book = self.reserve(some_lines())
        if book is None:
            return
        if random.random() < 0.3:
            self.read_back(book)
        self.wait()
        if random.random() < 0.2:
            self.move(book, "extend", {"ttl_seconds": LONGER_S})
        if random.random() < 0.25:
            self.move(book, "release", {"reason": random.choice(("cancelled", "payment_failed", "risk"))})
        elif self.move(book, "confirm", {}):
            self.wait()
            self.after_payment(book)
        self.read_back(book)

    def after_payment(self, book: OrderBook) -> None:
        """Most parcels leave, some orders are taken back, the rest waits."""
        fate = random.random()
        if fate < 0.6:
            self.move(book, "consume", {})
        elif fate < 0.8:
            self.move(book, "return", {"reason": "changed their mind"})

    @task(1)
    def walk_away(self) -> None:
        """A hold that nobody settles: the system gives it back by itself."""
        self.reserve(some_lines(), ttl_s=WALK_AWAY_S, expires=True)

    @task(1)
    def batch(self) -> None:
        """Several orders in one call, and all of them settled in the next."""
        books = [new_order(some_lines()) for _ in range(BATCH_ORDERS)]
        self.operate([(book, {"op": "reserve", **reserve_body(book)}) for book in books])
        held = [book for book in books if book.status == "RESERVED"]
        settled = [random.choice(("confirm", "release")) for _ in held]
        reasons = {"confirm": {}, "release": {"reason": "cancelled"}}
        if held:
            self.operate(
                [
                    (book, {"op": verb, "order_id": book.order_id, **reasons[verb]})
                    for book, verb in zip(held, settled, strict=True)
                ]
            )

    def operate(self, asked: list[tuple[OrderBook, dict[str, Any]]]) -> None:
        """One call of operations; each result goes into the book of its order."""
        body = {"operations": [operation for _, operation in asked]}
        for book, operation in asked:
            book.asking = operation["op"]
        told, unknown = self.ask_until_answered("operations", "POST", "/v1/operations", body)
        if not told.done:
            for book, operation in asked:
                self.hear(book, operation["op"], told, unknown=unknown)
            return
        for (book, operation), result in zip(asked, told.body["results"], strict=True):
            one = Told(result["status"], result["body"].get("code", ""), result["body"], result.get("replay", False))
            self.hear(book, operation["op"], one, unknown=unknown)
            if not one.done and one.code not in SHORT:
                self.complain("operations", f"{operation['op']}: {one.status} {one.code}")

    @task(2)
    def look(self) -> None:
        """Read one key, or the first page of them."""
        if random.random() < 0.7:
            key = random.choice(PLAN.inventory_keys)
            self.ask("read_inventory", "GET", f"/v1/inventory/{quote(key, safe='')}")
        else:
            self.ask("query_inventory", "POST", "/v1/inventory/query", {"inventory_keys": PLAN.inventory_keys[:50]})


USERS = (Customer,)
