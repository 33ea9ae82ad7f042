"""Callers who lose patience and repeat, and who send the same call several times at once: still nothing is done twice."""

import random
from collections.abc import Mapping
from typing import Any, Final

import gevent
from locust import between, task
from locust.contrib.fasthttp import FastHttpSession

from loadtests.books import REACHES, OrderBook
from loadtests.users import PLAN, SHORT, OrderCaller, Told, new_order, reserve_body

PATIENCE_S: Final = 0.01
"""About as long as a call takes, so that many answers come just too late."""
HASTY_ATTEMPTS_MAX: Final = 3
TWINS: Final = 3


class Impatient(OrderCaller):
    """Gives up early and repeats with the same id, or asks for the same thing in several requests at once."""

    wait_time = between(0.3, 0.9)

    def on_start(self) -> None:
        """A second session that does not wait; the first one is for the attempt that must know."""
        self.hasty = FastHttpSession(
            self.host,
            self.environment.events.request,
            self,
            network_timeout=PATIENCE_S,
            connection_timeout=self.connection_timeout,
            max_retries=0,
            max_redirects=0,
            insecure=True,
        )

    @task
    def whole_life(self) -> None:
        """Hold, pay, hand over or take back, each of it more than once."""
        book = new_order({random.choice(PLAN.inventory_keys): random.randint(1, 3)})
        if not self.storm(book, "reserve", "/v1/reservations", reserve_body(book)):
            return
        path = f"/v1/reservations/{book.order_id}"
        if random.random() < 0.3:
            self.storm(book, "release", f"{path}/release", {"reason": "cancelled"})
        elif self.storm(book, "confirm", f"{path}/confirm", {}):
            verb, body = random.choice((("consume", {}), ("return", {"reason": "changed their mind"})))
            self.storm(book, verb, f"{path}/{verb}", body)
        self.read_back(book)

    def storm(self, book: OrderBook, verb: str, path: str, body: Mapping[str, Any]) -> bool:
        """The same call again and again; whether it was done in the end."""
        expected = SHORT if verb == "reserve" else frozenset[str]()
        unknown = False
        for _ in range(random.randint(0, HASTY_ATTEMPTS_MAX)):
            book.asking = verb
            told = self.ask("hasty", "POST", path, body, expected=expected, hasty=self.hasty)
            unknown = unknown or told.may_have_run
            self.hear(book, verb, told, unknown=unknown)
        answers: list[tuple[Told, bool]] = []
        book.asking = verb

        def twin() -> None:
            answers.append(self.ask_until_answered(verb, "POST", path, body, expected=expected))

        gevent.joinall([gevent.spawn(twin) for _ in range(TWINS)], raise_error=True)
        # What is certain is heard last: it outweighs the doubts.
        for told, doubt in sorted(answers, key=lambda answer: answer[0].done):
            self.hear(book, verb, told, unknown=unknown or doubt)
        return book.status == REACHES[verb]


USERS = (Impatient,)
