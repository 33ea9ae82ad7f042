"""Plays orders against a running system as an order service would, and records what it asked and was told."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from random import Random

from client.answers import Answer, Done, Refused
from client.failures import ClientError, OutcomeUnknown
from client.replies import Order
from client.stockgate import StockgateClient
from stockgate.demo_history import OrderHistory
from stockgate.demo_stream import Fate, OrderPlan

EXPIRY_MARGIN_S = 0.5
"""How long after its due time a late payment comes."""


@dataclass(slots=True)
class Player:
    """One order service. Orders go to the clients in turn; everything it learns stands in its fields.

    `think_s` is the longest pause between the calls of one order. Histories hold times of `time.monotonic`.
    """

    clients: Sequence[StockgateClient]
    seed: int
    think_s: float = 0.02
    orders: dict[str, OrderHistory] = field(default_factory=dict[str, OrderHistory])
    reserve_s: list[float] = field(default_factory=list[float])
    """Latency of every answered reserve, repeats included."""
    calls: int = 0
    not_executed: int = 0
    surprises: list[str] = field(default_factory=list[str])
    """Answers that no correct system gives. Each is a sentence."""
    late: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    """Orders whose payment comes after the hold has expired, each waiting in a task of its own."""

    async def play(self, plan: OrderPlan, tasks: asyncio.TaskGroup) -> None:
        """Play one order to its end, but for a late payment, which goes on in `tasks`."""
        client = self.clients[len(self.orders) % len(self.clients)]
        random = Random(f"{self.seed}/{plan.order_id}")
        history = self.orders[plan.order_id] = OrderHistory(dict(plan.lines))
        order = await self._reserve(client, plan, history)
        if order is None:
            return
        await asyncio.sleep(random.random() * self.think_s)
        if plan.fate in {Fate.PAID, Fate.RETURNED}:
            await self._pay(client, plan, history)
        elif plan.fate in {Fate.FAILED, Fate.CANCELLED}:
            reason = "payment_failed" if plan.fate is Fate.FAILED else "cancelled"
            history.held_until = min(time.monotonic(), history.held_until or float("inf"))
            answers = await self._ask(plan, history, "release", lambda: client.release(plan.order_id, reason))
            history.released = any(isinstance(answer, Done) for answer in answers)
            self._expect_done(plan, "release", answers)
        else:
            history.abandoned = True
            if plan.fate is Fate.LATE and order.expires_at is not None:
                wait_s = _seconds(order.server_time, order.expires_at) + EXPIRY_MARGIN_S
                task = tasks.create_task(self._pay_late(client, plan, history, wait_s))
                self.late.add(task)
                task.add_done_callback(self.late.discard)

    async def _reserve(self, client: StockgateClient, plan: OrderPlan, history: OrderHistory) -> Order | None:
        invoked = time.monotonic()

        async def reserve() -> Answer[Order]:
            started = time.monotonic()
            answer = await client.reserve(
                plan.order_id, dict(plan.lines), ttl_seconds=plan.ttl_s, buyer_id=plan.buyer_id or None
            )
            self.reserve_s.append(time.monotonic() - started)
            if isinstance(answer, Done) and history.held_from is None:
                history.held_from = time.monotonic()
            return answer

        answers = await self._ask(plan, history, "reserve", reserve)
        done = [answer for answer in answers if isinstance(answer, Done)]
        refused = [answer for answer in answers if isinstance(answer, Refused)]
        if len([answer for answer in done if not answer.replay and not answer.after_unknown]) > 1:
            self.surprises.append(f"{plan.order_id}: two of its identical reserves were told to be the first")
        if done:
            history.reserved = True
            order = done[0].value
            if order.expires_at is not None:
                # The hold began after we asked, so it certainly lasts this long by our clock.
                history.held_until = invoked + _seconds(order.server_time, order.expires_at)
            return order
        if refused:
            history.refused = refused[0].code
            if any(answer.after_unknown for answer in refused):
                # An attempt whose answer was lost may have held stock that has expired since, or may still be decided.
                history.unknown.append("reserve")
            elif refused[0].code != "INSUFFICIENT_STOCK":
                self.surprises.append(f"{plan.order_id}: reserve was refused with {refused[0].code}")
        return None

    async def _pay(self, client: StockgateClient, plan: OrderPlan, history: OrderHistory) -> None:
        answers = await self._ask(plan, history, "confirm", lambda: client.confirm(plan.order_id))
        self._expect_done(plan, "confirm", answers)
        if not any(isinstance(answer, Done) for answer in answers):
            return
        history.confirmed, history.held_until = True, None
        if plan.fate is Fate.RETURNED:
            lines = list(plan.returned) or None
            history.held_until = time.monotonic()
            answers = await self._ask(
                plan, history, "return", lambda: client.return_(plan.order_id, "cancelled after payment", lines=lines)
            )
            self._expect_done(plan, "return", answers)
            if any(isinstance(answer, Done) for answer in answers):
                history.returned = set(lines or history.lines)
        elif plan.consumed:
            answers = await self._ask(plan, history, "consume", lambda: client.consume(plan.order_id))
            self._expect_done(plan, "consume", answers)
            history.consumed = any(isinstance(answer, Done) for answer in answers)

    async def _pay_late(self, client: StockgateClient, plan: OrderPlan, history: OrderHistory, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        for answer in await self._ask(plan, history, "confirm", lambda: client.confirm(plan.order_id)):
            if isinstance(answer, Done):
                self.surprises.append(f"{plan.order_id}: confirmed {EXPIRY_MARGIN_S} s after its hold had expired")
                history.confirmed, history.abandoned = True, False
            elif answer.code != "HOLD_EXPIRED":
                self.surprises.append(f"{plan.order_id}: a late confirm was refused with {answer.code}")

    async def _ask(
        self, plan: OrderPlan, history: OrderHistory, what: str, call: Callable[[], Awaitable[Answer[Order]]]
    ) -> list[Answer[Order]]:
        """Make a call, and its duplicates at the same moment; what had no answer is recorded."""
        answers: list[Answer[Order]] = []

        async def one() -> None:
            self.calls += 1
            try:
                answers.append(await call())
            except OutcomeUnknown:
                history.unknown.append(what)
            except ClientError as failure:
                self.not_executed += 1
                history.unexecuted.append(f"{what}: {failure}")

        await asyncio.gather(*(one() for _ in range(1 + plan.duplicates)))
        return answers

    def _expect_done(self, plan: OrderPlan, what: str, answers: list[Answer[Order]]) -> None:
        self.surprises.extend(
            f"{plan.order_id}: {what} was refused with {answer.code}"
            for answer in answers
            if isinstance(answer, Refused)
        )


def _seconds(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()
