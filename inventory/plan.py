"""What the entries of a batch do to the tables: every event checked, then rows to write, or its key held. Pure.

`arrange` (`inventory.sequence`) has said which entries are the next ones; `touched` (`inventory.tables`) names what of
the database they rest on; `plan` judges each event against it. An event that cannot be applied for a reason of its own
holds its key: it and all later events of that key are parked in order, and everything else goes on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from inventory.events import Change, Event
from inventory.sequence import (
    Arrangement,
    BrokenChange,
    GapMemory,
    LockedShard,
    StaleEntry,
    Stop,
    Taken,
    Verdict,
    storable_key,
)
from inventory.tables import HELD, Balance, Facts, Row, Tables, first
from kernel import limits

BEHIND: Final = "behind a held event"
REASON_CHARS_MAX: Final = 500
_BIGINT_MAX: Final = 2**63 - 1

EventName = tuple[int, int, str]
"""Entry number, place of the change within the entry, inventory key."""

_encoder = msgspec.msgpack.Encoder()


@dataclass(slots=True)
class Plan:
    """Everything that one transaction writes, and what follows once it is committed."""

    shard: LockedShard
    verdicts: Sequence[Verdict]
    memory: GapMemory
    tables: Tables
    """What was applied, as rows."""
    parked: list[Row]
    stale: list[StaleEntry]
    newly_held: list[tuple[str, str]]
    """Keys held by this batch, with the reason."""
    closed: bool
    """A CLOSE was obeyed: what was drifted is so no more, for Redis will read MySQL anew."""
    stopped: bool
    duplicates: int
    skipped_term: int
    dropped: int
    stop: Stop | None = None
    """The shard has to stop before this entry: arrange anew with it, then plan again."""


class _Parking:
    """The events set aside by one batch."""

    def __init__(self, shard_no: int, epoch: int, now_ms: int) -> None:
        self.shard_no, self.epoch, self.now_ms = shard_no, epoch, now_ms
        self.newly_held: list[tuple[str, str]] = []
        self._events: dict[tuple[str, int, int], tuple[Change | BrokenChange, list[Event], str]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def hold(self, key: str, balance: Balance, reason: str) -> None:
        """Hold the key, unless it is held."""
        if not balance.held & HELD:
            balance.held |= HELD
            balance.changed = True
            balance.updated_ms = self.now_ms
            self.newly_held.append((key, reason))

    def add(
        self, key: str, m: int, change_no: int, change: Change | BrokenChange, event: Event | None, why: str
    ) -> None:
        """Park one event. Events of one key in one change share a row."""
        _, events, _ = self._events.setdefault((key, m, change_no), (change, [], why))
        if event is not None:
            events.append(event)

    def rows(self) -> list[Row]:
        """Rows of `inventory_parked_event` in primary-key order."""
        rows: list[Row] = []
        for (key, m, change_no), (change, events, reason) in sorted(self._events.items(), key=first):
            if isinstance(change, BrokenChange):
                payload = change.payload
            else:
                payload = _encoder.encode(msgspec.structs.replace(change, events=events))
            seq = min(events[0].seq, _BIGINT_MAX) if events else 0
            rows.append(
                (
                    key,
                    self.epoch,
                    m,
                    change_no,
                    self.shard_no,
                    seq,
                    _storable(change.tenant, limits.TENANT_CHARS_MAX),
                    _storable(change.ref, limits.ORDER_ID_CHARS_MAX),
                    payload,
                    reason[:REASON_CHARS_MAX],
                    self.now_ms,
                )
            )
        return rows


def _storable(text: str, chars_max: int) -> str:
    """A name as far as its column can hold it: the parked payload has it in full."""
    return text[:chars_max] if text.isascii() else ""


def plan(
    row: LockedShard,
    arrangement: Arrangement,
    facts: Facts,
    now_ms: int,
    proven: Mapping[EventName, str] | None = None,
) -> Plan:
    """Judge every event of the taken entries in order and say what to write.

    `proven` are events that the server refused although nothing here speaks against them. The facts are not changed, so
    that the same can be planned again. Where `stop` is set in the result, nothing of it may be written.
    """
    tables = Tables(row.shard_no, facts)
    parking = _Parking(row.shard_no, row.epoch, now_ms)
    stop = _judge(arrangement.taken, tables, parking, row.epoch, facts.parked, proven or {})
    shard = arrangement.shard
    if parking.newly_held:
        shard = shard._replace(held_version=shard.held_version + 1)
    return Plan(
        shard=shard,
        verdicts=arrangement.verdicts,
        memory=arrangement.memory,
        tables=tables,
        parked=parking.rows(),
        stale=[
            entry
            for entry in dict.fromkeys(arrangement.stale)
            if (entry.epoch, entry.m, entry.digest) not in facts.listed and (entry.epoch, entry.m) not in facts.applied
        ],
        newly_held=parking.newly_held,
        closed=arrangement.closed,
        stopped=arrangement.stopped,
        duplicates=arrangement.duplicates,
        skipped_term=arrangement.skipped_term,
        dropped=arrangement.dropped,
        stop=stop,
    )


def _judge(
    taken: Sequence[Taken],
    tables: Tables,
    parking: _Parking,
    epoch: int,
    parked: int,
    proven: Mapping[EventName, str],
) -> Stop | None:
    for m, _, changes in taken:
        if parked + len(parking) >= limits.WORKER_PARKED_EVENTS_MAX:
            return Stop(m, "PARKED_FULL", f"{parked + len(parking)} events are parked: replay or reject held keys")
        for change_no, change in enumerate(changes):
            if isinstance(change, BrokenChange):
                _park_broken(tables, parking, m, change_no, change)
                continue
            for event in change.events:
                key = event.inventory_key
                balance = tables.balance(key)
                if balance is None:
                    if not storable_key(key):
                        return Stop(m, "UNDECODABLE_ENTRY", f"entry {m} names the key {key[:200]!r}")
                    balance = tables.place_balance(key)
                    fault = "the key has no balance"
                elif balance.held & HELD:
                    fault = BEHIND
                else:
                    fault = proven.get((m, change_no, key), "") if proven else ""
                    fault = fault or tables.fault(change, event, balance)
                if fault:
                    parking.hold(key, balance, fault)
                    parking.add(key, m, change_no, change, event, fault)
                else:
                    tables.accept(change, event, balance, epoch, m)
    return None


def _park_broken(tables: Tables, parking: _Parking, m: int, change_no: int, change: BrokenChange) -> None:
    for key in change.keys:
        balance = tables.balance(key) or tables.place_balance(key)
        fault = BEHIND if balance.held & HELD else f"the change cannot be decoded: {change.detail}"
        parking.hold(key, balance, fault)
        parking.add(key, m, change_no, change, None, fault)
