"""The calls on one order: decode, submit, answer."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from gateway import requests
from gateway.call import Call
from gateway.replies import Reply, result_reply
from gateway.requests import FieldError, InvalidBody, check_id
from inventory.hot_path import Decision
from inventory.moves import Move
from inventory.operations import Line, Operation, Result, lines_fingerprint
from inventory.outcomes import Outcome
from kernel import limits
from kernel.problems import Problem

_reserve_decoder: Final = msgspec.json.Decoder(requests.Reserve)
_confirm_decoder: Final = msgspec.json.Decoder(requests.Confirm)
_release_decoder: Final = msgspec.json.Decoder(requests.Release)
_consume_decoder: Final = msgspec.json.Decoder(requests.Consume)
_return_decoder: Final = msgspec.json.Decoder(requests.Return)
_extend_decoder: Final = msgspec.json.Decoder(requests.Extend)


class OneOperation:
    """The handler of a call that is one operation. `plan` makes it of the call and its whole body, without waiting."""

    def __init__(self, plan: Callable[[Call, bytes], Operation]) -> None:
        self.plan = plan
        # Named and described in the contract's document like any other handler.
        self.__name__ = plan.__name__
        self.__doc__ = plan.__doc__

    async def __call__(self, call: Call) -> Reply:
        """Answer the call; raises Problem, MalformedBody and InvalidBody for what is refused or failed."""
        return await decide(call, self.plan(call, await call.body()))


@OneOperation
def reserve(call: Call, body: bytes) -> Operation:
    """POST /v1/reservations."""
    return reserve_operation(call, call.decode(_reserve_decoder, body))


@OneOperation
def confirm(call: Call, body: bytes) -> Operation:
    """POST /v1/reservations/{order_id}/confirm."""
    asked = call.decode(_confirm_decoder, body, empty=b"{}")
    return settle_operation(call, Move.CONFIRM, _order_id(call), asked.lines)


@OneOperation
def release(call: Call, body: bytes) -> Operation:
    """POST /v1/reservations/{order_id}/release."""
    asked = call.decode(_release_decoder, body)
    return settle_operation(call, Move.RELEASE, _order_id(call), asked.lines, asked.reason)


@OneOperation
def consume(call: Call, body: bytes) -> Operation:
    """POST /v1/reservations/{order_id}/consume."""
    asked = call.decode(_consume_decoder, body, empty=b"{}")
    return settle_operation(call, Move.CONSUME, _order_id(call), asked.lines)


@OneOperation
def return_(call: Call, body: bytes) -> Operation:
    """POST /v1/reservations/{order_id}/return."""
    asked = call.decode(_return_decoder, body)
    return settle_operation(call, Move.RETURN, _order_id(call), asked.lines, asked.reason)


@OneOperation
def extend(call: Call, body: bytes) -> Operation:
    """POST /v1/reservations/{order_id}/extend."""
    return extend_operation(call, _order_id(call), call.decode(_extend_decoder, body).ttl_seconds)


async def read_order(call: Call) -> Reply:
    """GET /v1/reservations/{order_id}."""
    return await decide(call, settle_operation(call, Move.READ, _order_id(call), None))


async def decide(call: Call, operation: Operation) -> Reply:
    """Submit one operation and answer it; raises Problem for what is refused or failed."""
    if call.principal.prefix:
        return await _decide_within_prefix(call, operation)
    answer = await call.state["batcher"].submit([operation])
    return result_reply(operation, answer.results[0], answer)


async def _decide_within_prefix(call: Call, operation: Operation) -> Reply:
    """Decide for a caller who is confined to a prefix: an order with other lines is none of his.

    The lines of an order never change, so looking first and acting then leaves no gap.
    """
    prefix, batcher = call.principal.prefix, call.state["batcher"]
    if operation.kind is not Move.RESERVE:
        look = settle_operation(call, Move.READ, operation.ref, None)
        answer = await batcher.submit([look])
        read = result_reply(look, answer.results[0], answer)
        if not _is_within(prefix, answer.results[0]):
            raise Problem("UNKNOWN_ORDER", "no such order")
        if operation.kind is Move.READ:
            return read
    answer = await batcher.submit([operation])
    if _shows_order(answer.results[0]) and not _is_within(prefix, answer.results[0]):
        raise Problem("ORDER_CONFLICT", "the order id belongs to another order", differs=["lines"])
    return result_reply(operation, answer.results[0], answer)


def _shows_order(decision: Decision) -> bool:
    """Whether the order stands in the answer though another one was asked for."""
    return isinstance(decision, Result) and decision.outcome in {Outcome.ORDER_CONFLICT, Outcome.ORDER_CLOSED}


def _is_within(prefix: str, decision: Decision) -> bool:
    return isinstance(decision, Result) and all(
        line.inventory_key.startswith(prefix) for line in decision.order_view().lines
    )


def reserve_operation(call: Call, asked: requests.Reserve) -> Operation:
    """The operation for a reserve; raises InvalidBody and Problem FORBIDDEN."""
    lines = [Line(line.inventory_key, line.qty) for line in asked.lines]
    if len(lines) > 1:
        lines = _summed(lines)
    call.check_prefix([line.inventory_key for line in lines])
    settings = call.state["settings"]
    ttl_seconds = asked.ttl_seconds
    return Operation(
        kind=Move.RESERVE,
        group=0,
        tenant=call.principal.tenant,
        ref=asked.order_id,
        trace_id=call.trace_id,
        actor=call.principal.name,
        fingerprint=lines_fingerprint(lines),
        ttl_ms=1000 * (settings.hold_ttl_default_s if ttl_seconds is None else _bounded(call, ttl_seconds)),
        buyer_id=asked.buyer_id or "",
        lines=lines,
    )


def settle_operation(call: Call, kind: Move, order_id: str, keys: Iterable[str] | None, reason: str = "") -> Operation:
    """The operation for a move of an order that exists, or for reading it. Raises Problem FORBIDDEN."""
    # A key named twice is still one line.
    named = list(dict.fromkeys(keys or ()))
    call.check_prefix(named)
    return Operation(
        kind=kind,
        group=0,
        tenant=call.principal.tenant,
        ref=order_id,
        trace_id=call.trace_id,
        actor=call.principal.name,
        reason=reason,
        lines=[Line(key, 0) for key in named],
    )


def extend_operation(call: Call, order_id: str, ttl_seconds: int) -> Operation:
    """The operation for an extension; raises InvalidBody above the configured bound."""
    operation = settle_operation(call, Move.EXTEND, order_id, None)
    operation.ttl_ms = 1000 * _bounded(call, ttl_seconds)
    return operation


def _summed(lines: list[Line]) -> list[Line]:
    """Lines with each key once, in the order in which the keys came; raises InvalidBody where a sum is too large."""
    sums: dict[str, int] = {}
    for line in lines:
        sums[line.inventory_key] = sums.get(line.inventory_key, 0) + line.qty
    if len(sums) == len(lines):
        return lines
    for key, qty in sums.items():
        if qty > limits.QTY_MAX:
            raise InvalidBody(FieldError("$.lines", f"the lines with {key!r} sum up to more than {limits.QTY_MAX}"))
    return [Line(key, qty) for key, qty in sums.items()]


def _bounded(call: Call, ttl_seconds: int) -> int:
    bound = call.state["settings"].hold_ttl_max_s
    if ttl_seconds > bound:
        raise InvalidBody(FieldError("$.ttl_seconds", f"at most {bound} s here"))
    return ttl_seconds


def _order_id(call: Call) -> str:
    return check_id("order_id", call.names[0])
