"""What explanations of keys and orders have in common: how the shard stands, what waits for an operator, what is stale."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

import sql
from inventory.events import decode_changes
from inventory.explain_log import LogView
from inventory.explain_verdict import Finding
from inventory.explain_verdict import stopped as stopped_finding
from kernel.clock import instant
from kernel.mysql_door import Database

PARKED_MAX: Final = 20
STALE_MAX: Final = 20


class ShardFacts(NamedTuple):
    """The shard's row as far as it explains something: the first columns of `select_key_to_explain`."""

    mode: str
    epoch: int
    applied_m: int
    alarm: str
    alarm_detail: str
    rebuild_wanted: int
    rebuild_reason: str

    def findings(self) -> list[Finding]:
        """What has to be said of the shard, whatever is asked about."""
        return [stopped_finding(self.alarm, self.alarm_detail)] if self.alarm else []


class Parked(msgspec.Struct, frozen=True):
    """One event that waits for an operator."""

    inventory_key: str
    epoch: int
    m: int
    seq: int
    tenant: str
    ref: str
    """The order, or the request number of an operator's change."""
    reason: str
    parked_at: datetime


class Stale(msgspec.Struct, frozen=True):
    """One change of a closed epoch that never took effect."""

    epoch: int
    m: int
    move: str
    tenant: str
    ref: str
    inventory_keys: list[str]
    noted_at: datetime


def parked_of(rows: Sequence[Sequence[Any]]) -> list[Parked]:
    """Parked events from rows of `select_parked_events_of_key` or `…_of_order`."""
    return [
        Parked(key, epoch, m, seq, tenant, ref, reason, instant(parked_ms))
        for key, epoch, m, seq, tenant, ref, reason, parked_ms in rows
    ]


async def read_stale(database: Database, shard: int, text: str, *, is_key: bool) -> list[Stale]:
    """The last stale changes that name a key, or an order; raises what the door raises."""
    rows = await database.fetch_all(sql.load("select_stale_events_naming"), (shard, text, STALE_MAX))
    found: list[Stale] = []
    for epoch, m, payload, noted_ms in rows:
        try:
            changes = decode_changes(payload)
        except msgspec.MsgspecError:
            continue
        for change in changes:
            keys = [event.inventory_key for event in change.events]
            if text in keys if is_key else text == change.ref:
                found.append(Stale(epoch, m, change.kind.name, change.tenant, change.ref, keys, instant(noted_ms)))
    return found[:STALE_MAX]


def where_it_waits(log: LogView | None, last_m: int) -> str:
    """Where a change of entry `last_m` is on its way to MySQL."""
    if log is None:
        return "the log could not be read"
    if last_m > log.confirmed_m:
        return f"entry {last_m} of the log is not confirmed by the broker yet, which has {log.confirmed_m}"
    return f"the broker has entry {last_m}, MySQL has applied {log.applied_m}"
