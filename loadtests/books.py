"""What users were told, and whether the system says the same afterwards. Pure: no sockets, no clock.

Every user keeps a book of each order and of each operator's change. `compare` holds the books against what was read at the
end: what was lost, done twice, oversold, or is simply different.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

NEVER: Final = "NEVER"
"""The state of an order that was refused: no store may know it."""

REACHES: Final[Mapping[str, str]] = {
    "reserve": "RESERVED",
    "extend": "RESERVED",
    "confirm": "CONFIRMED",
    "release": "RELEASED",
    "consume": "CONSUMED",
    "return": "RETURNED",
}
REPEATABLE: Final = frozenset({"extend"})
"""Moves that do something new each time; of all others one answer at most may say that it was the first."""

CHANGE_REASON: Final = "load test"
"""Part of what makes a repeat of a change the same request."""

FINDINGS_SHOWN_MAX: Final = 20


class OrderBook(msgspec.Struct):
    """One order as its caller knows it; all its lines are in one state. `lines`: units by inventory key."""

    order_id: str
    lines: dict[str, int]
    expires: bool = False
    """Held so briefly that the system may release it by itself."""
    status: str = NEVER
    possible: list[str] = []
    """States that attempts without an answer may have brought about."""
    asking: str = ""
    """The move under way; still there at the end where the caller was stopped in the middle of it."""
    unanswered: bool = False
    """The last call came to no answer at all, whatever was tried."""
    firsts: dict[str, int] = {}
    """Answers by move that did not call themselves a replay."""

    def done(self, move: str, *, replay: bool) -> None:
        """The move was answered 2xx."""
        self.status, self.possible = REACHES[move], []
        if not replay:
            self.firsts[move] = self.firsts.get(move, 0) + 1

    def doubt(self, move: str) -> None:
        """An attempt may have been carried out, now or later."""
        self.possible.append(REACHES[move])

    def states(self) -> set[str]:
        """Every state that the caller must accept."""
        states = {self.status, *self.possible}
        if self.asking:
            states.add(REACHES[self.asking])
        return states | {"RELEASED"} if self.expires and "RESERVED" in states else states


class ChangeBook(msgspec.Struct):
    """One operator's change; `qty` in units, negative for an adjustment downward."""

    kind: Literal["adjust", "lock", "unlock"]
    inventory_key: str
    qty: int
    request_no: str
    told: Literal["done", "refused", "unanswered"] = "unanswered"


class Books(msgspec.Struct):
    """All books of a run."""

    orders: list[OrderBook] = []
    changes: list[ChangeBook] = []
    replays: int = 0
    """2xx answers that said `Idempotent-Replay`."""
    given_up: int = 0
    """Attempts whose answer the caller did not wait for."""


class OrderSeen(msgspec.Struct, frozen=True):
    """An order as the system says it is at the end."""

    status: str
    lines: dict[str, int]


class KeySeen(msgspec.Struct, frozen=True):
    """A key's quantities as the system says they are at the end, in units."""

    available: int
    reserved: int
    sold: int
    consumed: int
    locked: int
    total: int


class Verdict(msgspec.Struct):
    """Counts of what is wrong, `oversold` in units; `findings` says it in sentences, the first of them at least."""

    lost: int = 0
    """Orders that were acknowledged and are unknown or in another state."""
    doubled: int = 0
    """Things done more often than asked: two first answers, a trace of a refused order."""
    oversold: int = 0
    drift: int = 0
    """Quantities that do not follow from the orders, and violations that the audit reports."""
    unanswered: int = 0
    """Calls of which the caller does not know what became of them."""
    unsold: int = 0
    """Units that nobody has bought."""
    findings: list[str] = []

    def find(self, text: str) -> None:
        """Keep a sentence, if not too many are there already."""
        if len(self.findings) < FINDINGS_SHOWN_MAX:
            self.findings.append(text)


def compare(
    books: Books, orders: Mapping[str, OrderSeen], keys: Mapping[str, KeySeen], stock: Mapping[str, int]
) -> Verdict:
    """Hold the books against what the system says. `stock`: units each key was created with.

    An order that is not in `orders` is unknown to the system, a key that is not in `keys` too.
    """
    verdict = Verdict()
    for book in books.orders:
        _compare_order(book, orders.get(book.order_id), verdict)
    totals, locked = _changed(books.changes, stock)
    promised: Counter[str] = Counter()
    for book in books.orders:
        # What may have expired holds nothing any more that anybody could rely on.
        if book.status in {"CONFIRMED", "CONSUMED"} or (book.status == "RESERVED" and not book.expires):
            promised.update(book.lines)
    held = _held(orders.values())
    for key, total in totals.items():
        over = promised[key] + locked[key] - total
        if over > 0:
            verdict.oversold += over
            verdict.find(f"{key}: {promised[key]} units were promised and {locked[key]} locked of {total}")
        _compare_key(key, keys.get(key), total, locked[key], held, verdict)
    verdict.unanswered += sum(book.unanswered for book in books.orders)
    verdict.unanswered += sum(change.told == "unanswered" for change in books.changes)
    return verdict


def _compare_order(book: OrderBook, seen: OrderSeen | None, verdict: Verdict) -> None:
    for move, count in book.firsts.items():
        if count > 1 and move not in REPEATABLE:
            verdict.doubled += 1
            verdict.find(f"{book.order_id}: {count} answers to {move} said that they were the first")
    states = book.states()
    if seen is None:
        if NEVER not in states:
            verdict.lost += 1
            verdict.find(f"{book.order_id}: was told {book.status}, and is unknown")
    elif states == {NEVER}:
        verdict.doubled += 1
        verdict.find(f"{book.order_id}: was refused, and is {seen.status}")
    elif seen.status not in states:
        verdict.lost += 1
        verdict.find(f"{book.order_id}: was told {' or '.join(sorted(states))}, and is {seen.status}")
    elif seen.lines != book.lines:
        verdict.doubled += 1
        verdict.find(f"{book.order_id}: holds {seen.lines}, asked for {book.lines}")


def _changed(changes: Sequence[ChangeBook], stock: Mapping[str, int]) -> tuple[dict[str, int], Counter[str]]:
    """Total and locked units by key after the operators' changes."""
    totals, locked = dict(stock), Counter[str]()
    for change in changes:
        if change.told != "done":
            continue
        if change.kind == "adjust":
            totals[change.inventory_key] += change.qty
        else:
            locked[change.inventory_key] += change.qty if change.kind == "lock" else -change.qty
    return totals, locked


def _held(orders: Iterable[OrderSeen]) -> dict[str, Counter[str]]:
    """Units by state and key, as the orders themselves say."""
    held = {status: Counter[str]() for status in REACHES.values()}
    for order in orders:
        held.setdefault(order.status, Counter()).update(order.lines)
    return held


def _compare_key(
    key: str, seen: KeySeen | None, total: int, locked: int, held: Mapping[str, Counter[str]], verdict: Verdict
) -> None:
    reserved, sold, consumed = (held[status][key] for status in ("RESERVED", "CONFIRMED", "CONSUMED"))
    expected = KeySeen(total - reserved - sold - consumed - locked, reserved, sold, consumed, locked, total)
    if seen != expected:
        verdict.drift += 1
        verdict.find(f"{key}: is {seen}, its orders and changes make {expected}")
    verdict.unsold += expected.available
