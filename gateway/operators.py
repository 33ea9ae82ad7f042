"""The operators' calls: how everything stands, whether the invariants hold, and comparisons on request."""

import os
import socket
from typing import Any, Final

import msgspec

from gateway import requests
from gateway.call import Call
from gateway.replies import JSON, Reply, encode
from gateway.requests import FieldError, InvalidBody
from inventory.explain_order import OrderExplanation
from inventory.operator_actions import Action, BadCursor, BadReason
from inventory.shard_reply import ShardReply, shard_reply
from kernel.problems import Problem

SHARD: Final = 0
"""The only shard, until orders over several shards are built."""

_reconcile_decoder: Final = msgspec.json.Decoder(requests.Reconcile)


class GatewayReply(msgspec.Struct):
    """The process that answered."""

    host: str
    pid: int
    leads: list[int]


class StatusReply(msgspec.Struct):
    """How everything stands at this moment; drift is counted since the tables exist."""

    gateway: GatewayReply
    gateways: int | None
    """Gateways that listen to the first shard's namings."""
    shards: list[ShardReply]
    drift_found: int
    drift_repaired: int


class CheckReply(msgspec.Struct):
    """One invariant, how many things were looked at, and what violates it."""

    name: str
    ok: bool
    checked: int
    violations: list[dict[str, Any]]


class AuditReply(msgspec.Struct):
    """The invariants over everything. What is in flight is no violation."""

    ok: bool
    checks: list[CheckReply]


class TaskCreatedReply(msgspec.Struct):
    """A comparison that the reconciler will do."""

    id: int


class TaskReply(msgspec.Struct):
    """A comparison: counts are keys, times UTC epoch ms, 0 = not yet."""

    id: int
    shard: int
    epoch: int
    scope: str
    dry_run: bool
    status: str
    cold: int
    in_flight: int
    healthy: int
    drifted: int
    lost: int
    repaired: int
    stuck: int
    detail: str
    requested_by: str
    started_ms: int
    finished_ms: int


async def status(call: Call) -> Reply:
    """GET /ops/status."""
    state = call.state
    reading = await state["overview"].status()
    leads = state["leader"].status.leading
    shard = shard_reply(SHARD, reading, leads=leads)
    gateway = GatewayReply(socket.gethostname(), os.getpid(), [SHARD] if leads else [])
    reply = StatusReply(gateway, reading.gateways, [shard], shard.drift_found or 0, shard.drift_repaired or 0)
    return Reply(200, encode(reply))


async def read_audit(call: Call) -> Reply:
    """GET /ops/audit."""
    checks = await call.state["overview"].audit()
    found = [CheckReply(check.name, check.ok, check.checked, check.violations) for check in checks]
    return Reply(200, encode(AuditReply(all(check.ok for check in found), found)))


async def reconcile(call: Call) -> Reply:
    """POST /ops/reconcile: the reconciler does it, this only leaves the task."""
    asked = await call.decoded(_reconcile_decoder, empty=b"{}")
    keys = asked.keys or []
    action = Action(
        actor=call.principal.name,
        action="reconcile",
        target=keys[0] if len(keys) == 1 else f"{len(keys)} keys" if keys else f"shard {asked.shard}",
        reason=asked.reason or "",
        dry_run=asked.dry_run,
        tenant=call.principal.tenant,
        request_id=call.request_id,
        trace_id=call.trace_id,
    )
    try:
        task = await call.state["overview"].request_reconcile(keys, action)
    except BadReason as wrong:
        raise InvalidBody(FieldError("$.reason", str(wrong))) from None
    return Reply(202, encode(TaskCreatedReply(task)))


async def actions(call: Call) -> Reply:
    """GET /ops/actions: what operators did, the newest first."""
    asked = call.queried(requests.ActionsQuery)
    try:
        return Reply(200, encode(await call.state["overview"].actions(asked.limit, asked.before)))
    except BadCursor as wrong:
        raise InvalidBody(FieldError("query.before", str(wrong))) from None


async def explain_inventory(call: Call) -> Reply:
    """GET /ops/inventory/{key}/explain."""
    key = requests.check_inventory_key(call.names[0])
    call.check_prefix([key])
    asked = call.queried(requests.ExplainKeyQuery)
    explanation = await call.state["overview"].explain_key(key, asked.limit, asked.before)
    if explanation is None:
        raise Problem("UNKNOWN_INVENTORY_KEY", "no such key", inventory_keys=[key])
    return Reply(200, encode(explanation))


async def explain_order(call: Call) -> Reply:
    """GET /ops/orders/{order_id}."""
    order_id = requests.check_id("order_id", call.names[0])
    asked = call.queried(requests.ExplainOrderQuery)
    tenant, prefix = asked.tenant or call.principal.tenant, call.principal.prefix
    try:
        explanation = await call.state["overview"].explain_order(tenant, order_id, asked.limit, asked.after)
    except BadCursor as wrong:
        raise InvalidBody(FieldError("query.after", str(wrong))) from None
    if explanation is None or (prefix and not _is_within(prefix, explanation)):
        raise Problem("UNKNOWN_ORDER", f"tenant {tenant} has no such order")
    return Reply(200, encode(explanation))


def _is_within(prefix: str, explanation: OrderExplanation) -> bool:
    """Whether somebody who is confined to a prefix may see the order: not unless all its lines are known to have it."""
    return bool(explanation.lines) and all(line.inventory_key.startswith(prefix) for line in explanation.lines)


async def read_reconcile(call: Call) -> Reply:
    """GET /ops/reconcile/{id}."""
    number = call.names[0]
    if not (number.isascii() and number.isdigit() and len(number) < 19):
        raise InvalidBody(FieldError("id", "a task's id is a whole number"))
    task = await call.state["overview"].read_reconcile(int(number))
    if task is None:
        raise Problem("UNKNOWN_TASK", f"no task {number}")
    fields = task._asdict()
    return Reply(200, encode(TaskReply(id=fields.pop("task_id"), **fields)), (JSON,))
