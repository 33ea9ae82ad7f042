"""The operators' calls on the shard's mode: who decides now, let the other one decide, give a switch up.

A switch is a wish in the shard's row. The leader, whichever process that is, carries it out step by step.
"""

from datetime import datetime
from typing import Final, Literal, cast

import msgspec

from gateway import requests
from gateway.call import Call
from gateway.replies import Reply, encode
from gateway.requests import FieldError, InvalidBody
from inventory.mode_switch import (
    AlreadyThere,
    NoSwitch,
    Status,
    StepView,
    SwitchRunning,
    SwitchView,
    ToMode,
    TooLate,
)
from inventory.operator_actions import Action, BadReason
from kernel.clock import instant
from kernel.problems import Problem

Mode = Literal["hot", "closing", "db", "opening"]

_switch_decoder: Final = msgspec.json.Decoder(requests.SwitchMode)


class SwitchReply(msgspec.Struct):
    """One switch: what was asked for, and how far it is. `detail` says what it waits for, or how it ended."""

    id: int
    to: ToMode
    status: Status
    reason: str
    requested_by: str
    requested_at: datetime
    finished_at: datetime | None
    steps: list[StepView]
    detail: str


class ModeReply(msgspec.Struct):
    """Who decides: Redis (`hot`), MySQL (`db`), or nobody for the moment (`closing`, `opening`)."""

    shard: int
    mode: Mode
    epoch: int
    since: datetime
    switch: SwitchReply | None
    """The switch that runs."""
    last_switch: SwitchReply | None
    """The newest one, where none runs."""


class SwitchBegunReply(msgspec.Struct):
    """The id of a switch, whose steps `GET /ops/mode` shows; null where the shard was in that mode already."""

    switch: int | None


async def read_mode(call: Call) -> Reply:
    """GET /ops/mode."""
    asked = call.queried(requests.ModeQuery)
    return Reply(200, encode(await _mode(call, asked.shard)))


async def switch_mode(call: Call) -> Reply:
    """PUT /ops/mode: 202 with a switch that was begun, 200 where the shard is in that mode already."""
    asked = await call.decoded(_switch_decoder)
    action = _action(call, f"switch_to_{asked.mode}", asked.shard, asked.reason)
    try:
        number = await call.state["overview"].request_switch(asked.mode, action)
    except BadReason as wrong:
        raise InvalidBody(FieldError("$.reason", str(wrong))) from None
    except SwitchRunning as running:
        raise Problem("SWITCH_RUNNING", str(running), switch=running.switch_id) from None
    except AlreadyThere:
        return Reply(200, encode(SwitchBegunReply(None)))
    return Reply(202, encode(SwitchBegunReply(number)))


async def abort_switch(call: Call) -> Reply:
    """DELETE /ops/mode/switch."""
    asked = call.queried(requests.AbortSwitchQuery)
    try:
        number = await call.state["overview"].abort_switch(_action(call, "abort_switch", asked.shard, asked.reason))
    except BadReason as wrong:
        raise InvalidBody(FieldError("query.reason", str(wrong))) from None
    except NoSwitch as none:
        raise Problem("NO_SWITCH", str(none)) from None
    except TooLate as late:
        raise Problem("SWITCH_TOO_LATE", str(late), switch=late.switch_id) from None
    return Reply(200, encode(SwitchBegunReply(number)))


def _action(call: Call, action: str, shard: int, reason: str) -> Action:
    return Action(
        actor=call.principal.name,
        action=action,
        target=f"shard {shard}",
        reason=reason,
        tenant=call.principal.tenant,
        request_id=call.request_id,
        trace_id=call.trace_id,
    )


async def _mode(call: Call, shard: int) -> ModeReply:
    row, newest = await call.state["overview"].mode()
    runs = newest is not None and newest.status == "RUNNING"
    # Its first step is a fence: from then on nobody decides until the switch has ended or was given up.
    closing = row.mode == "hot" and runs and newest is not None and newest.to_mode == "db" and bool(newest.steps)
    shown = None if newest is None else _shown(newest)
    return ModeReply(
        shard=shard,
        mode="closing" if closing else cast("Mode", row.mode),
        epoch=row.epoch,
        since=instant(row.since_ms),
        switch=shown if runs else None,
        last_switch=None if runs else shown,
    )


def _shown(switch: SwitchView) -> SwitchReply:
    return SwitchReply(
        id=switch.id,
        to=switch.to_mode,
        status=switch.status,
        reason=switch.reason,
        requested_by=switch.requested_by,
        requested_at=switch.requested_at,
        finished_at=switch.finished_at,
        steps=switch.steps,
        detail=switch.detail,
    )
