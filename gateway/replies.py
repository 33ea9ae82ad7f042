"""What the service answers, as msgspec types, and how results of the deciding path become bodies and headers."""

from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, assert_never

import msgspec

from inventory.batcher import Answer
from inventory.hot_path import Decision, Failure
from inventory.moves import EXPIRED, MOVES, LineState, Move
from inventory.operations import BalanceView, Operation, OrderView, Result
from inventory.outcomes import Outcome
from kernel.clock import instant
from kernel.problems import Problem

LineStatus = Literal["RESERVED", "CONFIRMED", "RELEASED", "CONSUMED", "RETURNED"]
OrderStatus = Literal["RESERVED", "CONFIRMED", "RELEASED", "CONSUMED", "RETURNED", "MIXED"]

STATUS_OF: Final[dict[int, LineStatus]] = {
    LineState.RESERVED: "RESERVED",
    LineState.CONFIRMED: "CONFIRMED",
    LineState.RELEASED: "RELEASED",
    LineState.CONSUMED: "CONSUMED",
    LineState.RETURNED: "RETURNED",
}
RETRY_AFTER_S: Final = 1

Header = tuple[bytes, bytes]

JSON: Final[Header] = (b"content-type", b"application/json")
PROBLEM_JSON: Final[Header] = (b"content-type", b"application/problem+json")
RETRY_AFTER: Final[Header] = (b"retry-after", b"%d" % RETRY_AFTER_S)
REPLAYED: Final[Header] = (b"idempotent-replay", b"true")
DURABILITY: Final[dict[str, Header]] = {name: (b"durability", name.encode()) for name in ("broker", "redis", "mysql")}


class OrderLineReply(msgspec.Struct, omit_defaults=True, gc=False):
    """One line of an order; (epoch, seq) is its last change on its key."""

    inventory_key: str
    qty: int
    status: LineStatus
    epoch: int
    seq: int
    reason: str = ""
    """Why it was released or returned."""


class OrderReply(msgspec.Struct, omit_defaults=True, gc=False):
    """An order as it stands at `server_time`. `expires_at` is null once no line is reserved any more."""

    order_id: str
    status: OrderStatus
    lines: list[OrderLineReply]
    expires_at: datetime | None
    server_time: datetime
    buyer_id: str = ""


class QuantitiesReply(msgspec.Struct, gc=False):
    """A key after an operator's change, in units of stock."""

    inventory_key: str
    available: int
    reserved: int
    sold: int
    consumed: int
    locked: int
    total: int
    epoch: int
    seq: int
    inventory_version: int


class InventoryReply(msgspec.Struct, gc=False):
    """A key as it stands, in units of stock. `inventory_version` counts operators' changes only."""

    inventory_key: str
    inventory_mode: Literal["QTY", "SYS_GEN", "EXT_POOL"]
    init_status: Literal["READY", "PENDING_IMPORT", "PENDING_GEN"]
    available: int
    reserved: int
    sold: int
    consumed: int
    locked: int
    total: int
    epoch: int
    seq: int
    inventory_version: int
    source: Literal["redis", "mysql"]


class ResultReply(msgspec.Struct, omit_defaults=True, gc=False):
    """One of several results: the status and body that the call alone would have had."""

    status: int
    body: msgspec.Raw
    replay: bool = False


class ResultsReply(msgspec.Struct, gc=False):
    """Results in the order of what was asked."""

    results: list[ResultReply]


class Reply(NamedTuple):
    """A reply before it is sent: `headers` come on top of content length and request id."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON,)
    outcome: str = ""
    """For 5xx: what is said about it, for the log."""


encode: Final = msgspec.json.Encoder().encode


def order_reply(order_id: str, view: OrderView, now_ms: int) -> OrderReply:
    """The body for an order; `now_ms` is the deciding store's clock."""
    lines = [
        OrderLineReply(line.inventory_key, line.qty, STATUS_OF[line.state], line.epoch, line.seq, line.reason)
        for line in view.lines
    ]
    status: OrderStatus = lines[0].status
    any_open = status == "RESERVED"
    for line in lines:
        any_open = any_open or line.status == "RESERVED"
        if line.status != status:
            status = "MIXED"
    due = instant(view.due_ms) if any_open else None
    return OrderReply(order_id, status, lines, due, instant(now_ms), view.buyer_id)


def quantities_reply(view: BalanceView, epoch: int) -> QuantitiesReply:
    """The body for an operator's change."""
    total = view.available + view.reserved + view.sold + view.consumed + view.locked
    return QuantitiesReply(
        view.inventory_key,
        view.available,
        view.reserved,
        view.sold,
        view.consumed,
        view.locked,
        total,
        epoch,
        view.seq,
        view.version,
    )


def result_reply(operation: Operation, result: Decision, answer: Answer) -> Reply:
    """The reply for one decided operation; raises Problem for everything but DONE."""
    if isinstance(result, Failure):
        raise failure(result)
    if result.outcome is not Outcome.DONE:
        raise refusal(operation, result)
    if operation.kind is Move.READ:
        return Reply(200, encode(order_reply(operation.ref, result.order_view(), answer.now_ms)))
    durability = DURABILITY[answer.durability]
    headers = (JSON, durability, REPLAYED) if result.replay else (JSON, durability)
    if operation.kind in MOVES_OF_REQUESTS:
        return Reply(200, encode(quantities_reply(result.balance_view(), answer.epoch)), headers)
    status = 201 if operation.kind is Move.RESERVE and not result.replay else 200
    return Reply(status, encode(order_reply(operation.ref, result.order_view(), answer.now_ms)), headers)


MOVES_OF_REQUESTS: Final = frozenset({Move.ADJUST, Move.LOCK, Move.UNLOCK})


def problem_reply(problem: Problem, instance: str) -> Reply:
    """The reply for a problem; `instance` is the request's id."""
    headers: tuple[Header, ...] = (PROBLEM_JSON,)
    if problem.status in {429, 503}:
        headers = (PROBLEM_JSON, RETRY_AFTER)
    elif problem.status == 401:
        headers = (PROBLEM_JSON, (b"www-authenticate", b"Bearer"))
    elif problem.status == 405:
        headers = (PROBLEM_JSON, (b"allow", ", ".join(problem.extra["allowed"]).encode()))
    elif problem.status in {408, 413, 431}:
        # What is left of the body is not read: the connection is of no use any more.
        headers = (PROBLEM_JSON, (b"connection", b"close"))
    return Reply(problem.status, problem.body(instance), headers, str(problem.extra.get("outcome", "")))


def failure(failed: Failure) -> Problem:
    """The problem that a store's trouble is to the caller, who is told the same for every kind of too much."""
    if failed.code == "TOO_MANY_REQUESTS":
        return Problem(failed.code, failed.detail)
    code = "UNAVAILABLE" if failed.code == "OVERLOADED" else failed.code
    return Problem(code, failed.detail, outcome=failed.outcome)


# One case for each outcome and nothing else: shorter pieces would only hide one.
def refusal(operation: Operation, result: Result) -> Problem:  # noqa: C901, PLR0911, PLR0912
    """The problem that an outcome is to the caller."""
    detail: Any = result.detail
    match result.outcome:
        case Outcome.INSUFFICIENT_STOCK:
            lines = [{"inventory_key": k, "requested": requested, "available": left} for k, requested, left in detail]
            return Problem("INSUFFICIENT_STOCK", f"{len(lines)} of the lines cannot be filled", lines=lines)
        case Outcome.ORDER_CONFLICT:
            return _order_conflict(operation, result.order_view())
        case Outcome.ORDER_CLOSED:
            status = order_reply(operation.ref, result.order_view(), 0).status
            return Problem("ORDER_CLOSED", "the order has ended; use a new order id", order_status=status)
        case Outcome.ILLEGAL_TRANSITION:
            return _illegal_transition(operation, detail)
        case Outcome.HOLD_EXPIRED:
            expired = [
                {"inventory_key": line.inventory_key, "status": STATUS_OF[line.state], "reason": line.reason}
                for line in result.order_view().lines
                if line.reason == EXPIRED
            ]
            return Problem("HOLD_EXPIRED", "the hold ended before this call", lines=expired)
        case Outcome.UNKNOWN_ORDER:
            return Problem("UNKNOWN_ORDER", "no such order")
        case Outcome.UNKNOWN_INVENTORY_KEY:
            return Problem("UNKNOWN_INVENTORY_KEY", "no such key", inventory_keys=list(detail))
        case Outcome.VERSION_CONFLICT:
            return Problem("VERSION_CONFLICT", "another operator's change came first", inventory_version=detail[0])
        case Outcome.REQUEST_CONFLICT:
            return Problem("REQUEST_CONFLICT", "the request number belongs to another request")
        case Outcome.UNKNOWN_LINE:
            errors = [{"path": "$.lines", "message": f"the order has no line {key!r}"} for key in detail]
            return Problem("INVALID_REQUEST", "a line was named that the order does not have", errors=errors)
        case Outcome.QUANTITY_LIMIT:
            return Problem("QUANTITY_LIMIT", "a quantity would leave the exact range", inventory_keys=list(detail))
        case Outcome.KEY_FROZEN:
            keys = list(detail or ())
            return Problem("KEY_FROZEN", "held for an operator", outcome="not_executed", inventory_keys=keys)
        case Outcome.OVERLOADED:
            return Problem("UNAVAILABLE", "too much is waiting for the broker", outcome="not_executed")
        case Outcome.LOST | Outcome.NOT_LOADED | Outcome.NEED_LOOKUP | Outcome.SKIPPED:
            return Problem("UNAVAILABLE", f"not decided ({result.outcome.name})", outcome="not_executed")
        case Outcome.DONE:
            raise ValueError("a DONE is no refusal")
        case _:
            assert_never(result.outcome)


def _order_conflict(operation: Operation, view: OrderView) -> Problem:
    held = {line.inventory_key: line.qty for line in view.lines}
    asked = {line.inventory_key: line.qty for line in operation.lines}
    lines = [
        {"inventory_key": key, "requested": asked.get(key, 0), "held": held.get(key, 0)}
        for key in sorted(held.keys() | asked.keys())
        if held.get(key) != asked.get(key)
    ]
    differs = ["lines"] * bool(lines) + ["buyer_id"] * (not lines)
    return Problem("ORDER_CONFLICT", "the order id belongs to another order", differs=differs, lines=lines)


def _illegal_transition(operation: Operation, detail: list[tuple[str, int, str]]) -> Problem:
    lines = [{"inventory_key": key, "status": STATUS_OF[state], "reason": reason} for key, state, reason in detail]
    states = {line["status"] for line in lines}
    # `status` in a problem body is the HTTP status, so the order's stands beside it under its own name.
    return Problem(
        "ILLEGAL_TRANSITION",
        "the order's lines do not allow this",
        order_status=states.pop() if len(states) == 1 else "MIXED",
        wanted=MOVES[operation.kind].target.name,
        lines=lines,
    )
