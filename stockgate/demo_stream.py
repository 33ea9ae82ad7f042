"""What the demo asks for: a seeded, made-up stream of orders, or the lines of a real shop's export.

Pure: no sockets, no clock. The stream is a list of `OrderPlan`; who plays it decides about time.
"""

import csv
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import accumulate
from pathlib import Path


class Fate(Enum):
    """What becomes of an order once it holds stock."""

    PAID = "paid"
    """Confirmed, and handed over by every second one."""
    FAILED = "payment_failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    """Nobody ever pays: the hold expires."""
    LATE = "late"
    """Paid after the hold has expired: must be refused."""
    RETURNED = "returned"
    """Paid, then cancelled before it was handed over."""


@dataclass(frozen=True, slots=True)
class OrderPlan:
    """One order to play. `lines` are (key, quantity ≥ 1) with each key once; `returned` the keys given back later."""

    order_id: str
    lines: tuple[tuple[str, int], ...]
    fate: Fate
    buyer_id: str = ""
    duplicates: int = 0
    """How many more times each call is made at the same moment."""
    consumed: bool = False
    returned: tuple[str, ...] = ()
    ttl_s: int = 900


@dataclass(frozen=True, slots=True)
class WriteOff:
    """Stock that the shop's own books removed: an adjustment, not an order."""

    request_no: str
    key: str
    qty: int


@dataclass(slots=True)
class Stream:
    """A catalogue with opening stock, the orders in their order of arrival, and what is no order."""

    stock: dict[str, int]
    orders: list[OrderPlan]
    flash_key: str = ""
    write_offs: list[WriteOff] = field(default_factory=list[WriteOff])
    skipped: dict[str, int] = field(default_factory=dict[str, int])
    """Input lines that are not stock or could not be matched, by reason."""


def zipf_stream(
    run: str, *, orders: int, keys: int, seed: int, flash_stock: int = 300, flash_share: float = 0.05
) -> Stream:
    """A stream as a shop sees it: popularity by Zipf, 1 to 5 lines, payments that succeed, fail or never come.

    Keys start with `demo-{run}-` so that every run has its own stock. The popular keys are stocked well below demand, so
    some orders must be refused.
    """
    rng = random.Random(seed)
    names = [f"demo-{run}-sku-{number:04d}@store-{number % 7}" for number in range(keys)]
    weights = list(accumulate(1 / rank**1.05 for rank in range(1, keys + 1)))
    flash_key = f"demo-{run}-flash-sale"
    # Demand per key follows its weight; every third key has half of what will be asked.
    units_expected = orders * 3 * 1.6
    stock = {
        name: max(
            5,
            int(
                units_expected * (weights[i] - (weights[i - 1] if i else 0)) / weights[-1] * (0.5 if i % 3 == 0 else 2)
            ),
        )
        for i, name in enumerate(names)
    }
    stock[flash_key] = flash_stock
    plans: list[OrderPlan] = []
    for number in range(orders):
        if rng.random() < flash_share:
            lines: dict[str, int] = {flash_key: 1}
        else:
            wanted = rng.choices((1, 2, 3, 4, 5), (45, 25, 15, 10, 5))[0]
            chosen = dict.fromkeys(rng.choices(names, cum_weights=weights, k=wanted))
            lines = {key: rng.choices((1, 2, 3, 6), (70, 18, 8, 4))[0] for key in chosen}
        fate = rng.choices(list(Fate), (74, 7, 6, 7, 2, 4))[0]
        plans.append(
            OrderPlan(
                order_id=f"{run}-{number:06d}",
                lines=tuple(lines.items()),
                fate=fate,
                buyer_id=f"buyer-{rng.randrange(orders // 3 + 1)}",
                duplicates=rng.choices((0, 1, 4), (93, 6, 1))[0],
                consumed=rng.random() < 0.5,
                ttl_s=rng.randint(2, 6) if fate in (Fate.ABANDONED, Fate.LATE) else 900,
            )
        )
    return Stream(stock=stock, orders=plans, flash_key=flash_key)


NOT_STOCK = frozenset({"POST", "DOT", "M", "D", "C2", "BANK CHARGES", "CRUK", "AMAZONFEE", "S", "PADS"})
"""Codes that shops book as order lines although nothing is taken from a shelf: postage, discounts, fees."""


class OrdersFileError(Exception):
    """The file is not an export of order lines; the message says which line and why."""


def read_orders_file(path: Path, run: str) -> Stream:
    """Order lines of a real shop, as CSV with the columns order_id, sku, quantity, ordered_at, buyer_id.

    Consecutive and scattered lines of one order are gathered; a SKU repeated within an order is summed. An order id that
    begins with C cancels: its line is matched to the latest earlier order of the same buyer that holds at least one line of
    that SKU with that quantity, and that line is returned. Other negative quantities are write-offs. Every SKU is stocked
    with what the file asks of it, less a tenth, so that some orders meet an empty shelf.

    Raises:
        OrdersFileError: a missing column, or a quantity that is no integer.
    """
    skipped: dict[str, int] = defaultdict(int)
    lines: dict[str, dict[str, int]] = {}
    buyers: dict[str, str] = {}
    cancels: list[tuple[str, str, int]] = []
    write_offs: list[WriteOff] = []
    for number, row in _rows(path):
        sku, order_id, buyer = row["sku"].strip(), row["order_id"].strip(), row["buyer_id"].strip()
        try:
            quantity = int(row["quantity"])
        except ValueError:
            raise OrdersFileError(f"{path}, line {number}: quantity {row['quantity']!r} is not an integer") from None
        if sku.upper() in NOT_STOCK or not sku:
            skipped["charge"] += 1
        elif quantity == 0:
            skipped["zero quantity"] += 1
        elif order_id.startswith("C"):
            cancels.append((buyer, sku, -quantity))
        elif quantity < 0:
            write_offs.append(WriteOff(f"{run}-wo-{number}", f"demo-{run}-{sku}", -quantity))
        else:
            wanted = lines.setdefault(order_id, {})
            wanted[sku] = wanted.get(sku, 0) + quantity
            buyers[order_id] = buyer
    returned = _match_cancellations(lines, buyers, cancels, skipped)
    demand: dict[str, int] = defaultdict(int)
    for wanted in lines.values():
        for sku, quantity in wanted.items():
            demand[f"demo-{run}-{sku}"] += quantity
    stock = {key: max(1, quantity - quantity // 10) for key, quantity in demand.items()}
    for write_off in write_offs:
        stock[write_off.key] = stock.get(write_off.key, 0) + write_off.qty
    orders = [
        OrderPlan(
            order_id=f"{run}-{order_id}",
            lines=tuple((f"demo-{run}-{sku}", quantity) for sku, quantity in wanted.items()),
            fate=Fate.RETURNED if returned.get(order_id) else Fate.PAID,
            buyer_id=buyers[order_id],
            returned=tuple(f"demo-{run}-{sku}" for sku in returned.get(order_id, ())),
            duplicates=1 if number % 20 == 0 else 0,
            consumed=number % 2 == 0,
        )
        for number, (order_id, wanted) in enumerate(lines.items())
    ]
    return Stream(stock=stock, orders=orders, write_offs=write_offs, skipped=dict(skipped))


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        missing = {"order_id", "sku", "quantity", "buyer_id"} - set(reader.fieldnames or ())
        if missing:
            raise OrdersFileError(f"{path}: the header lacks {', '.join(sorted(missing))}")
        for row in reader:
            if any(value is None for value in row.values()):
                raise OrdersFileError(f"{path}, line {reader.line_num}: too few columns")
            yield reader.line_num, row


def _match_cancellations(
    lines: dict[str, dict[str, int]],
    buyers: dict[str, str],
    cancels: Sequence[tuple[str, str, int]],
    skipped: dict[str, int],
) -> dict[str, list[str]]:
    by_buyer: dict[tuple[str, str, int], list[str]] = defaultdict(list)
    for order_id, wanted in lines.items():
        for sku, quantity in wanted.items():
            by_buyer[buyers[order_id], sku, quantity].append(order_id)
    returned: dict[str, list[str]] = defaultdict(list)
    for buyer, sku, quantity in cancels:
        candidates = by_buyer.get((buyer, sku, quantity)) if buyer else None
        if candidates:
            returned[candidates.pop()].append(sku)
        else:
            # Bought before the file begins, or given back in part, which a return of whole lines cannot say.
            skipped["cancellation without its order"] += 1
    return returned
