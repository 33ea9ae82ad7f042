"""The calls on keys: create, read, adjust, lock, unlock."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gateway import requests
from gateway.call import Call
from gateway.replies import (
    DURABILITY,
    JSON,
    REPLAYED,
    InventoryReply,
    Reply,
    ResultReply,
    ResultsReply,
    encode,
    problem_reply,
    result_reply,
)
from gateway.requests import FieldError, InvalidBody, check_inventory_key
from inventory.catalogue import Config, Creation, NewKey
from inventory.loading import ReadBalance
from inventory.moves import Move
from inventory.operations import Line, Operation, fingerprint
from inventory.operator_actions import BadReason, with_approval
from kernel import limits
from kernel.errors import StoreUnavailable
from kernel.problems import Problem

_create_decoder: Final = msgspec.json.Decoder(requests.CreateInventory)
_query_decoder: Final = msgspec.json.Decoder(requests.QueryInventory)
_adjust_decoder: Final = msgspec.json.Decoder(requests.Adjust)
_lock_decoder: Final = msgspec.json.Decoder(requests.LockUnlock)

CREATION_REASON: Final = "first quantity"


async def create_inventory(call: Call) -> Reply:
    """POST /v1/inventory: the key in MySQL, then its first quantity through the log.

    A crash in between leaves a key with nothing in it; the same request repeated goes on from there.
    """
    asked = await call.decoded(_create_decoder)
    call.check_prefix([asked.inventory_key])
    key = NewKey(
        inventory_key=asked.inventory_key,
        item_id=asked.item_id,
        inventory_mode=asked.inventory_mode,
        init_status="READY",
        init_quantity=asked.init_quantity,
        tenant=call.principal.tenant,
        request_no=asked.request_no,
        created_by=call.principal.name,
    )
    creation = await call.state["catalogue"].create(key)
    if creation is Creation.CONFLICT:
        raise Problem("REQUEST_CONFLICT", "the key or the request number belongs to another request")
    try:
        return await _filled(call, asked, key, creation)
    except (Problem, StoreUnavailable) as failure:
        raise _once_created(failure) from failure


async def _filled(call: Call, asked: requests.CreateInventory, key: NewKey, creation: Creation) -> Reply:
    """Bring the first quantity to a key that exists, and answer what it is then."""
    replay = creation is Creation.REPLAY
    headers = (JSON, DURABILITY["mysql"])
    if asked.init_quantity:
        operation = _request_operation(
            call, Move.ADJUST, asked.inventory_key, asked.init_quantity, key.adjust_request_no(), CREATION_REASON
        )
        adjusted = await _submitted(call, operation)
        headers = adjusted.headers
        replay = adjusted.headers[-1] == REPLAYED
    elif replay:
        headers = (*headers, REPLAYED)
    found = await _read(call, [asked.inventory_key])
    return Reply(200 if replay else 201, encode(found[asked.inventory_key]), headers)


def _once_created(failure: Problem | StoreUnavailable) -> Problem:
    """What a failure is after the key was made: whatever it says of its own part, something has been executed."""
    if isinstance(failure, StoreUnavailable):
        return Problem("UNAVAILABLE", f"{failure.store} cannot be asked", outcome="unknown")
    if failure.extra.get("outcome") == "not_executed":
        return Problem(failure.code, failure.detail, **{**failure.extra, "outcome": "unknown"})
    return failure


async def read_inventory(call: Call) -> Reply:
    """GET /v1/inventory/{key}."""
    key = check_inventory_key(call.names[0])
    call.check_prefix([key])
    found = await _read(call, [key])
    if key not in found:
        raise _unknown_key(key)
    return Reply(200, encode(found[key]))


async def query_inventory(call: Call) -> Reply:
    """POST /v1/inventory/query."""
    asked = await call.decoded(_query_decoder)
    call.check_prefix(asked.inventory_keys)
    found = await _read(call, list(dict.fromkeys(asked.inventory_keys)))
    results = [_query_result(call, key, found.get(key)) for key in asked.inventory_keys]
    return Reply(200, encode(ResultsReply(results)))


def _query_result(call: Call, key: str, reply: InventoryReply | None) -> ResultReply:
    if reply is not None:
        return ResultReply(200, msgspec.Raw(encode(reply)))
    problem = problem_reply(_unknown_key(key), call.request_id)
    return ResultReply(problem.status, msgspec.Raw(problem.body))


async def adjust(call: Call) -> Reply:
    """POST /v1/inventory/{key}/adjust."""
    key = _key(call)
    asked = await call.decoded(_adjust_decoder)
    if asked.delta == 0:
        raise InvalidBody(FieldError("$.delta", "must not be 0"))
    try:
        reason = with_approval(asked.reason, asked.approval_no)
    except BadReason as wrong:
        raise InvalidBody(FieldError("$.reason", str(wrong))) from None
    if len(reason) > limits.REASON_CHARS_MAX:
        raise InvalidBody(FieldError("$.reason", "too long together with approval_no"))
    operation = _request_operation(call, Move.ADJUST, key, asked.delta, asked.request_no, reason)
    if asked.base_inventory_version is not None:
        operation.base_version = asked.base_inventory_version
    return await _submitted(call, operation)


async def lock(call: Call) -> Reply:
    """POST /v1/inventory/{key}/lock."""
    return await _lock_or_unlock(call, Move.LOCK)


async def unlock(call: Call) -> Reply:
    """POST /v1/inventory/{key}/unlock."""
    return await _lock_or_unlock(call, Move.UNLOCK)


async def _lock_or_unlock(call: Call, kind: Move) -> Reply:
    key = _key(call)
    asked = await call.decoded(_lock_decoder)
    return await _submitted(call, _request_operation(call, kind, key, asked.qty, asked.request_no, asked.reason))


def _key(call: Call) -> str:
    key = check_inventory_key(call.names[0])
    call.check_prefix([key])
    return key


def _request_operation(call: Call, kind: Move, key: str, qty: int, request_no: str, reason: str) -> Operation:
    return Operation(
        kind=kind,
        group=0,
        tenant=call.principal.tenant,
        ref=request_no,
        trace_id=call.trace_id,
        actor=call.principal.name,
        reason=reason,
        # Who repeats a request with a newer base version or another wording still means the same change.
        fingerprint=fingerprint(kind.name, key, str(qty)),
        lines=[Line(key, qty)],
    )


async def _submitted(call: Call, operation: Operation) -> Reply:
    answer = await call.state["batcher"].submit([operation])
    return result_reply(operation, answer.results[0], answer)


async def _read(call: Call, keys: Sequence[str]) -> dict[str, InventoryReply]:
    """The keys that exist. MySQL knows what a key is, Redis how much of it there is where it is loaded."""
    configs = await call.state["catalogue"].read_configs(keys)
    balances = await call.state["hot_path"].read_balances([key for key in keys if key in configs])
    return {key: _inventory_reply(configs[key], balance) for key, balance in balances.items()}


def _inventory_reply(config: Config, read: ReadBalance) -> InventoryReply:
    balance = read.balance
    return InventoryReply(
        inventory_key=balance.inventory_key,
        inventory_mode=config.inventory_mode,
        init_status=config.init_status,
        available=balance.available,
        reserved=balance.reserved,
        sold=balance.sold,
        consumed=balance.consumed,
        locked=balance.locked,
        total=balance.available + balance.reserved + balance.sold + balance.consumed + balance.locked,
        epoch=read.epoch,
        seq=balance.seq,
        inventory_version=balance.version,
        source=read.source,
    )


def _unknown_key(key: str) -> Problem:
    return Problem("UNKNOWN_INVENTORY_KEY", "no such key", inventory_keys=[key])
