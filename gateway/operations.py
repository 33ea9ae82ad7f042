"""Many operations in one request: each independent, in order, answered as the calls alone would have been."""

from typing import Final, assert_never

import msgspec

from gateway import requests
from gateway.call import Call
from gateway.dispatch import REFUSALS, problem_of
from gateway.replies import (
    DURABILITY,
    JSON,
    REPLAYED,
    Header,
    Reply,
    ResultReply,
    ResultsReply,
    encode,
    problem_reply,
    result_reply,
)
from gateway.requests import decode, decode_each
from gateway.reservations import decide, extend_operation, reserve_operation, settle_operation
from inventory.batcher import Answer
from inventory.hot_path import Decision
from inventory.moves import Move
from inventory.operations import Operation

_operations_decoder: Final = msgspec.json.Decoder(requests.Operations)
_operation_decoder: Final = msgspec.json.Decoder(requests.OperationRequest)


async def operations(call: Call) -> Reply:
    """POST /v1/operations."""
    body = await call.body()
    asked = call.decode(_operations_decoder, body).operations
    values = decode_each(_operation_decoder, body, asked)
    if values is None:
        understood = [_understood(call, raw) for raw in asked]
    else:
        understood = [_planned(call, value) for value in values]
    if call.principal.prefix:
        # Each order has to be looked at first, and an earlier element may be what makes it known.
        replies = [await _alone(call, one) for one in understood]
    else:
        replies = await _together(call, understood)
    results = [_result(reply) for reply in replies]
    return Reply(200, encode(ResultsReply(results)), (JSON, _durability(call, replies)))


def _durability(call: Call, replies: list[Reply]) -> Header:
    """What keeps all of the results: MySQL only where it has decided each one that says so."""
    said = {header for reply in replies for header in reply.headers if header[0] == b"durability"}
    by_mysql = DURABILITY["mysql"]
    return by_mysql if said == {by_mysql} else DURABILITY[call.state["settings"].ack]


def _understood(call: Call, raw: msgspec.Raw) -> Operation | Reply:
    """The operation that an element asks for, or its refusal."""
    try:
        value = decode(_operation_decoder, raw)
    except REFUSALS as error:
        return _refused(call, error)
    return _planned(call, value)


def _planned(call: Call, asked: requests.OperationRequest) -> Operation | Reply:
    try:
        return _operation(call, asked)
    except REFUSALS as error:
        return _refused(call, error)


def _operation(call: Call, asked: requests.OperationRequest) -> Operation:
    match asked:
        case requests.ReserveOp():
            return reserve_operation(call, asked)
        case requests.ConfirmOp():
            return settle_operation(call, Move.CONFIRM, asked.order_id, asked.lines)
        case requests.ReleaseOp():
            return settle_operation(call, Move.RELEASE, asked.order_id, asked.lines, asked.reason)
        case requests.ConsumeOp():
            return settle_operation(call, Move.CONSUME, asked.order_id, asked.lines)
        case requests.ReturnOp():
            return settle_operation(call, Move.RETURN, asked.order_id, asked.lines, asked.reason)
        case requests.ExtendOp():
            return extend_operation(call, asked.order_id, asked.ttl_seconds)
        case _:
            assert_never(asked)


async def _alone(call: Call, one: Operation | Reply) -> Reply:
    if isinstance(one, Reply):
        return one
    try:
        return await decide(call, one)
    except REFUSALS as error:
        return _refused(call, error)


async def _together(call: Call, understood: list[Operation | Reply]) -> list[Reply]:
    operations = [one for one in understood if isinstance(one, Operation)]
    if not operations:
        return [one for one in understood if isinstance(one, Reply)]
    answer = await call.state["batcher"].submit(operations)
    decisions = iter(answer.results)
    return [one if isinstance(one, Reply) else _decided(call, one, next(decisions), answer) for one in understood]


def _decided(call: Call, operation: Operation, decision: Decision, answer: Answer) -> Reply:
    try:
        return result_reply(operation, decision, answer)
    except REFUSALS as error:
        return _refused(call, error)


def _refused(call: Call, error: Exception) -> Reply:
    problem = problem_of(error)
    if problem is None:
        raise error
    return problem_reply(problem, call.request_id)


def _result(reply: Reply) -> ResultReply:
    return ResultReply(reply.status, msgspec.Raw(reply.body), REPLAYED in reply.headers)
