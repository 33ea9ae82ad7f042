"""What the service answers, as types. Unknown fields are ignored, so that a newer service may say more."""

from datetime import datetime
from typing import Literal

import msgspec

LineStatus = Literal["RESERVED", "CONFIRMED", "RELEASED", "CONSUMED", "RETURNED"]
OrderStatus = Literal["RESERVED", "CONFIRMED", "RELEASED", "CONSUMED", "RETURNED", "MIXED"]


class OrderLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an order; (epoch, seq) is the last change of this line on its key."""

    inventory_key: str
    qty: int
    status: LineStatus
    epoch: int
    seq: int
    reason: str = ""
    """Why the line was released or returned: `expired`, `cancelled`, …"""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """An order as it stands at `server_time`. `expires_at` is None once no line is reserved any more."""

    order_id: str
    status: OrderStatus
    lines: list[OrderLine]
    expires_at: datetime | None
    server_time: datetime
    buyer_id: str = ""


class Quantities(msgspec.Struct, frozen=True, kw_only=True):
    """The five quantities of a key after an operator's change, in units of stock, with their sum."""

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


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it was read; `inventory_version` counts operators' changes only."""

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


class ErrorLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a refusal: which fields are there depends on the code."""

    inventory_key: str
    requested: int | None = None
    available: int | None = None
    held: int | None = None
    status: str | None = None
    reason: str | None = None


class KeyResult(msgspec.Struct, frozen=True, kw_only=True):
    """One key of a query: its inventory with status 200, or the problem."""

    status: int
    body: msgspec.Raw


class KeyResults(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a query's answer, in the order that was asked."""

    results: list[KeyResult]


class ResultBody(msgspec.Struct, frozen=True, kw_only=True):
    """One result of `operations`."""

    status: int
    body: msgspec.Raw
    replay: bool = False


class ResultBodies(msgspec.Struct, frozen=True, kw_only=True):
    """Body of the answer of `operations`, in the order that was asked."""

    results: list[ResultBody]


class ShardStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One shard as the gateway that was asked sees it. Lags: entries of the log, seconds.

    None where the store that knows could not be asked; `missing` names it.
    """

    shard: int
    mode: str | None
    epoch: int | None
    term: int | None
    queue_depth: int | None
    log_head_m: int | None
    confirmed_m: int | None
    applied_m: int | None
    persist_lag_entries: int | None
    persist_lag_seconds: float | None
    held_keys: int | None
    parked_events: int | None
    stale_entries: int | None
    alarm: str = ""
    missing: list[str] = []


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/ops/status`."""

    shards: list[ShardStatus]
    drift_found: int
    drift_repaired: int


class SwitchStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that a switch has reached."""

    step: str
    at: datetime


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A switch of a shard's mode; `detail` says what it waits for, or how it ended."""

    id: int
    to: str
    status: str
    reason: str
    requested_by: str
    steps: list[SwitchStep]
    detail: str = ""


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/ops/mode`: `hot`, `closing`, `db` or `opening`, and the switch that runs."""

    shard: int
    mode: str
    epoch: int
    since: datetime
    switch: Switch | None
    last_switch: Switch | None


class SwitchBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a switch that was begun or given up; None where the shard was in that mode already."""

    switch: int | None


class AuditCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One invariant: how many things were looked at, and what violates it."""

    name: str
    ok: bool
    checked: int
    violations: list[object]


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `/ops/audit`."""

    ok: bool
    checks: list[AuditCheck]
