"""Users that keep books: every call records what it was told, and asks again with the same id until it knows.

Plan and books are the process's own, because Locust makes the users itself and hands nothing over.
"""

import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

import gevent
import msgspec
from locust import FastHttpUser
from locust.contrib.fasthttp import FastHttpSession

from loadtests.books import CHANGE_REASON, Books, ChangeBook, OrderBook
from loadtests.plan import read_plan

PLAN: Final = read_plan()
BOOKS: Final = Books()

ATTEMPTS_MAX: Final = 12
PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 2.0
HOLD_S: Final = 1_800
"""Longer than any run: only what shall expire does."""

CHECK: Final = "CHECK"
"""Stands for the method of a request where an answer contradicts an earlier one."""
SHORT: Final = frozenset({"INSUFFICIENT_STOCK"})


class Told(NamedTuple):
    """One answer. `status` 0: none came."""

    status: int
    code: str
    body: Mapping[str, Any]
    replay: bool

    @property
    def done(self) -> bool:
        return 200 <= self.status < 300

    @property
    def answered(self) -> bool:
        """Whether this is the service's decision, and not a failure on the way to it."""
        return 200 <= self.status < 500 and self.status != 429

    @property
    def may_have_run(self) -> bool:
        return not self.answered and self.status != 429 and self.body.get("outcome") != "not_executed"


class Caller(FastHttpUser):
    """Calls with one API key, judges every answer, and repeats what had none."""

    abstract = True
    scope: Literal["orders", "inventory", "ops"] = "orders"
    network_timeout = 15.0
    connection_timeout = 15.0

    def ask(
        self,
        name: str,
        method: str,
        path: str,
        body: object = None,
        *,
        expected: frozenset[str] = frozenset(),
        hasty: FastHttpSession | None = None,
    ) -> Told:
        """One attempt. A refusal with an `expected` code is no failure and is counted under `<name>_refused`.

        `hasty`: a session that does not wait; that no answer was heard is then no failure either.
        """
        answer = (hasty or self.client).request(
            method,
            path,
            name=name,
            data=None if body is None else msgspec.json.encode(body).decode(),
            headers={"Authorization": f"Bearer {PLAN.api_keys[self.scope]}", "Content-Type": "application/json"},
            catch_response=True,
        )
        told = _read(answer)
        with answer:
            if told.done:
                answer.success()
            elif told.code in expected:
                answer.request_meta["name"] = f"{name}_refused"
                answer.success()
            elif hasty and told.status == 0:
                BOOKS.given_up += 1
                answer.success()
            else:
                answer.failure(f"{told.status} {told.code or 'no answer'}")
        BOOKS.replays += told.replay
        return told

    def ask_until_answered(
        self, name: str, method: str, path: str, body: object = None, *, expected: frozenset[str] = frozenset()
    ) -> tuple[Told, bool]:
        """The answer, or the last failure after `ATTEMPTS_MAX`; and whether an attempt before it may have run."""
        told, unknown = self.ask(name, method, path, body, expected=expected), False
        for attempt in range(ATTEMPTS_MAX - 1):
            if told.answered:
                break
            unknown = unknown or told.may_have_run
            gevent.sleep(min(PAUSE_MAX_S, PAUSE_S * 2**attempt))
            told = self.ask(name, method, path, body, expected=expected)
        return told, unknown

    def complain(self, name: str, text: str) -> None:
        """Count a failure that stands in no status code: an answer that contradicts an earlier one."""
        self.environment.events.request.fire(
            request_type=CHECK,
            name=name,
            response_time=0,
            response_length=0,
            response=None,
            context={},
            exception=AssertionError(text),
        )


class OrderCaller(Caller):
    """An order service: holds and moves orders, and has a book of each."""

    abstract = True

    def reserve(self, lines: dict[str, int], *, ttl_s: int = HOLD_S, expires: bool = False) -> OrderBook | None:
        """A new order that holds these lines; None where it was refused or nobody knows."""
        book = new_order(lines, expires=expires)
        book.asking = "reserve"
        told, unknown = self.ask_until_answered(
            "reserve", "POST", "/v1/reservations", reserve_body(book, ttl_s), expected=SHORT
        )
        self.hear(book, "reserve", told, unknown=unknown)
        return book if told.done else None

    def move(self, book: OrderBook, verb: str, body: Mapping[str, object]) -> bool:
        """Move all lines of an order; whether it was done."""
        book.asking = verb
        told, unknown = self.ask_until_answered(verb, "POST", f"/v1/reservations/{book.order_id}/{verb}", body)
        self.hear(book, verb, told, unknown=unknown)
        return told.done

    def hear(self, book: OrderBook, verb: str, told: Told, *, unknown: bool) -> None:
        """Write into the book what an answer said; `unknown`: an attempt before it may have run."""
        if unknown or told.may_have_run:
            book.doubt(verb)
        book.asking, book.unanswered = "", not told.answered
        if told.done:
            book.done(verb, replay=told.replay)
            if told.body.get("status") != book.status:
                self.complain(verb, f"{verb} was answered with the status {told.body.get('status')}")

    def read_back(self, book: OrderBook) -> None:
        """What was answered is readable at once."""
        told, _ = self.ask_until_answered("read_order", "GET", f"/v1/reservations/{book.order_id}")
        if told.done and told.body["status"] not in book.states():
            self.complain("read_order", f"{told.body['status']} is read after {book.status} was answered")


class StockCaller(Caller):
    """An operator of stock: changes keys, and has a book of each change."""

    abstract = True
    scope = "inventory"

    def change(
        self, kind: Literal["adjust", "lock", "unlock"], key: str, qty: int, *, base_version: int | None = None
    ) -> bool:
        """One change of a key, `qty` in units; whether it was done."""
        book = ChangeBook(kind, key, qty, uuid.uuid4().hex)
        BOOKS.changes.append(book)
        told, unknown = self.ask_until_answered(
            kind,
            "POST",
            f"/v1/inventory/{quote(key, safe='')}/{kind}",
            change_body(book, base_version),
            expected=SHORT | {"VERSION_CONFLICT"},
        )
        if told.done:
            book.told = "done"
        elif told.answered and not unknown:
            book.told = "refused"
        return told.done


def new_order(lines: dict[str, int], *, expires: bool = False) -> OrderBook:
    """A book for an order that nobody has asked for yet."""
    book = OrderBook(uuid.uuid4().hex, lines, expires=expires)
    BOOKS.orders.append(book)
    return book


def reserve_body(book: OrderBook, ttl_s: int = HOLD_S) -> dict[str, object]:
    """The body that holds an order's lines."""
    lines = [{"inventory_key": key, "qty": qty} for key, qty in book.lines.items()]
    return {"order_id": book.order_id, "lines": lines, "ttl_seconds": ttl_s}


def change_body(book: ChangeBook, base_version: int | None = None) -> dict[str, object]:
    """The body of an operator's change."""
    body: dict[str, object] = {"request_no": book.request_no, "reason": CHANGE_REASON}
    body["delta" if book.kind == "adjust" else "qty"] = book.qty
    return body if base_version is None else {**body, "base_inventory_version": base_version}


def _read(answer: Any) -> Told:
    """The parts of an answer that count; a body that is no JSON has no code, which fails where one is needed."""
    try:
        body = msgspec.json.decode(answer.content or b"{}")
    except msgspec.DecodeError:
        body = {}
    body = body if isinstance(body, dict) else {}
    replay = answer.status_code != 0 and answer.headers.get("Idempotent-Replay") == "true"
    return Told(answer.status_code, str(body.get("code", "")), body, replay)
