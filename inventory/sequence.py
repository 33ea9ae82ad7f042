"""Which messages of the shard's queue count: terms, epochs, the dense numbers of entries and their digests. Pure.

The persist worker reads the shard row under its lock and asks here what the messages in its hands mean: taken up,
repeated, dropped, held for a gap, or a reason to stop. What the taken entries do to tables is `inventory.plan`'s matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

from inventory.events import (
    WIRE_VERSION,
    Change,
    LogMessage,
    MessageType,
    chain,
    decode_changes,
    decode_message,
    genesis,
)
from kernel import limits

GAP_ALARM_MS: Final = 5_000
"""A hole in the queue older than this is an alarm: the leader did not fill it."""

DIGEST_CHARS: Final = 40

STOPS: Final = frozenset(
    {
        "FORK",
        "CHAIN_BREAK",
        "EPOCH_AHEAD",
        "TERM_AHEAD",
        "UNDECODABLE_ENTRY",
        "UNKNOWN_VERSION",
        "PARKED_FULL",
        "DATA_ERROR",
    }
)
"""Alarms with which the worker takes nothing more until the row changes or an operator clears them."""

ALARMS: Final = STOPS | {"GAP"}
"""All alarms that the persist worker writes, and takes back, in the shard row. Others are not its own."""


_frames_decoder = msgspec.msgpack.Decoder(list[list[Any]])


class LockedShard(NamedTuple):
    """The columns of the shard row that the worker reads under its lock and writes."""

    shard_no: int
    mode: str
    epoch: int
    term: int
    applied_term: int
    applied_m: int
    applied_digest: str
    applied_at_ms: int
    applied_event_ms: int
    wanted_m: int
    held_version: int
    rebuild_wanted: int
    rebuild_reason: str
    since_ms: int
    alarm: str
    alarm_detail: str


@dataclass(frozen=True, slots=True)
class BrokenChange:
    """A change within a genuine entry that cannot be decoded, but whose keys can be named."""

    keys: tuple[str, ...]
    tenant: str
    ref: str
    payload: bytes
    detail: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry as it came. `changes` is empty, with `detail`, where not even its keys can be read."""

    digest: str
    payload: bytes
    changes: tuple[Change | BrokenChange, ...]
    events: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One delivery, decoded once. `message` is None where the body is malformed: `detail` says why."""

    body: bytes
    message: LogMessage | None
    entries: tuple[Entry, ...] = ()
    events: int = 0
    detail: str = ""
    newer_version: bool = False

    @property
    def last_m(self) -> int:
        """The highest entry number that this message speaks of."""
        message = self.message
        if message is None:
            return 0
        return message.after_m if message.type is MessageType.CLOSE else message.first_m + len(message.entries) - 1


def read_message(body: bytes, shard: int) -> Incoming:
    """Decode a delivery of the shard's queue; never raises."""
    try:
        message = decode_message(body)
    except msgspec.MsgspecError as error:
        newer = _wire_version(body) > WIRE_VERSION
        return Incoming(body, None, detail=str(error), newer_version=newer)
    if message.version > WIRE_VERSION:
        return Incoming(body, None, detail=f"wire version {message.version}", newer_version=True)
    if detail := _malformed(message, shard):
        return Incoming(body, None, detail=detail)
    entries = tuple(_read_entry(digest, payload) for digest, payload in message.entries)
    return Incoming(body, message, entries, sum(entry.events for entry in entries))


def _wire_version(body: bytes) -> int:
    try:
        raw = msgspec.msgpack.decode(body, type=list[Any])
        return msgspec.convert(raw[0] if raw else None, int)
    except msgspec.MsgspecError:
        return 0


def _malformed(message: LogMessage, shard: int) -> str:
    """Why a message that could be decoded is none of this shard's, or the empty string."""
    if message.version != WIRE_VERSION:
        return f"wire version {message.version}"
    if message.shard != shard:
        return f"shard {message.shard} in the queue of shard {shard}"
    if message.term < 1 or message.epoch < 0:
        return f"term {message.term}, epoch {message.epoch}"
    if message.type is MessageType.ENTRIES and (message.first_m < 1 or not message.entries):
        return f"{len(message.entries)} entries from {message.first_m}"
    if message.type is MessageType.CLOSE and (message.after_m < 0 or message.next_mode not in {"db", "opening"}):
        return f"close after {message.after_m} for mode {message.next_mode!r}"
    return ""


def _read_entry(digest: str, payload: bytes) -> Entry:
    try:
        changes = decode_changes(payload)
    except msgspec.MsgspecError as error:
        return _read_broken_entry(digest, payload, str(error))
    return Entry(digest, payload, tuple(changes), sum(len(change.events) for change in changes))


def _read_broken_entry(digest: str, payload: bytes, detail: str) -> Entry:
    """Take an entry apart change by change, so that one that makes no sense holds its own keys and nothing else."""
    try:
        raw = _frames_decoder.decode(payload)
    except msgspec.MsgspecError:
        return Entry(digest, payload, (), 0, detail)
    changes: list[Change | BrokenChange] = []
    for item in raw:
        try:
            changes.append(msgspec.convert(item, Change))
        except msgspec.ValidationError as error:
            keys = _keys_of(item)
            if not keys:
                return Entry(digest, payload, (), 0, detail)
            tenant, ref = _text(item, 1, limits.TENANT_CHARS_MAX), _text(item, 2, limits.ORDER_ID_CHARS_MAX)
            changes.append(BrokenChange(keys, tenant, ref, msgspec.msgpack.encode(item), str(error)))
    events = sum(len(change.events) if isinstance(change, Change) else len(change.keys) for change in changes)
    return Entry(digest, payload, tuple(changes), events)


def _keys_of(item: list[Any]) -> tuple[str, ...]:
    """The inventory keys of a change of which only the frame can be read; empty where that is impossible."""
    try:
        events = msgspec.convert(item[-1] if item else None, list[list[Any]])
        keys = [msgspec.convert(event[0] if event else None, str) for event in events]
    except msgspec.ValidationError:
        return ()
    return tuple(dict.fromkeys(keys)) if all(storable_key(key) for key in keys) else ()


def storable_key(key: str) -> bool:
    """Whether the tables can name this key at all."""
    return 0 < len(key) <= limits.INVENTORY_KEY_CHARS_MAX and key.isascii() and key.isprintable()


def _text(item: list[Any], position: int, chars_max: int) -> str:
    value = item[position] if len(item) > position else ""
    return value if isinstance(value, str) and len(value) <= chars_max and value.isascii() else ""


def _storable_digest(entry: Entry) -> str:
    digest = entry.digest
    return digest if len(digest) == DIGEST_CHARS and digest.isascii() else chain("", entry.payload)


class Verdict(IntEnum):
    """What becomes of a message once the transaction is committed."""

    DONE = 0
    """It is acknowledged: taken, repeated, of an older term, listed, or dropped because it will be sent again."""
    HELD = 1
    """It waits in memory for what is missing before it."""
    PENDING = 2
    """The shard stopped before or in it."""


@dataclass(frozen=True, slots=True)
class GapMemory:
    """What the worker remembers of a hole between two batches. `since_ms` is when it saw it, 0 = there is none."""

    epoch: int = 0
    before_m: int = 0
    since_ms: int = 0
    dropped_through_m: int = 0
    """Entries up to here were received, but not kept: too many came behind the hole. They must be sent again."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the shard stops before the first entry from `m` on: found while planning, fed back into the sequence."""

    m: int
    alarm: str
    detail: str


class Taken(NamedTuple):
    """An entry to apply: it is the next one and continues the chain."""

    m: int
    digest: str
    changes: tuple[Change | BrokenChange, ...]


class StaleEntry(NamedTuple):
    """An entry of a closed epoch, or a malformed message (epoch and m 0), to be listed. `events` name its ledger rows."""

    epoch: int
    m: int
    term: int
    digest: str
    payload: bytes
    events: tuple[tuple[str, int], ...] = ()


@dataclass(slots=True)
class Arrangement:
    """What a list of messages comes to. `shard` is the row as it will be when all `taken` are applied.

    After a CLOSE for mode db it names the next epoch, whose changes MySQL decides; `taken` are all of the one before.
    """

    shard: LockedShard
    verdicts: list[Verdict]
    taken: list[Taken] = field(default_factory=list[Taken])
    stale: list[StaleEntry] = field(default_factory=list[StaleEntry])
    memory: GapMemory = field(default_factory=GapMemory)
    closed: bool = False
    stopped: bool = False
    duplicates: int = 0
    """Entries that MySQL has already."""
    skipped_term: int = 0
    """Messages of an older term."""
    dropped: int = 0
    """Messages beyond a gap that were not kept."""


def _begin_db_epoch(shard: LockedShard) -> LockedShard:
    """The closed row as MySQL goes on with it: an epoch of its own, so that (epoch, seq) grows across the modes.

    Later messages of the closed epoch are then those of any older one. The pass itself still judges them by the epoch that
    it began with: what it has taken is not in the tables yet, and would be listed as stale.
    """
    epoch = shard.epoch + 1
    return shard._replace(
        epoch=epoch,
        applied_m=0,
        applied_digest=genesis(shard.shard_no, epoch),
        wanted_m=0,
        rebuild_wanted=0,
        rebuild_reason="",
    )


def arrange(
    row: LockedShard, incoming: Sequence[Incoming], memory: GapMemory, now_ms: int, stop: Stop | None = None
) -> Arrangement:
    """Say what each message means, in the order given: what is held from before comes first.

    `now_ms` is UTC epoch ms of this process, used for `since_ms` and for the age of a gap only.
    """
    sequence = _Sequence(row, incoming, memory, stop)
    for index in range(len(incoming)):
        if sequence.result.stopped:
            break
        sequence.take(index)
    return sequence.finish(now_ms)


class _Sequence:
    """One pass. The row's moving columns are attributes while it runs."""

    def __init__(self, row: LockedShard, incoming: Sequence[Incoming], memory: GapMemory, stop: Stop | None) -> None:
        self.row = row
        self.incoming = incoming
        self.stop = stop
        self.mode = row.mode
        self.applied_term = row.applied_term
        self.applied_m = row.applied_m
        self.digest = row.applied_digest
        self.alarm = ("", "")
        self.held: list[int] = []
        self.memory = memory if memory.epoch == row.epoch else GapMemory(epoch=row.epoch)
        self.dropped_through_m = self.memory.dropped_through_m
        self.result = Arrangement(row, [Verdict.PENDING] * len(incoming))

    def take(self, index: int) -> None:
        """Judge one message. Leaves it PENDING where the shard stops."""
        item = self.incoming[index]
        message = item.message
        if message is None:
            self._take_malformed(index, item)
        elif message.term < self.applied_term:
            self.result.skipped_term += 1
            self._done(index)
        elif message.type is MessageType.TERM:
            self._take_term(index, message)
        elif message.term > self.applied_term:
            self._halt("TERM_AHEAD", f"a message of term {message.term}, applied is term {self.applied_term}")
        elif message.epoch > self.row.epoch:
            self._halt("EPOCH_AHEAD", f"a message of epoch {message.epoch}, the row has epoch {self.row.epoch}")
        elif message.type is MessageType.CLOSE:
            self._take_close(index, message)
        elif message.epoch < self.row.epoch:
            self._list_stale(message, item.entries, message.first_m)
            self._done(index)
        else:
            self._take_entries(index, message, item.entries)

    def finish(self, now_ms: int) -> Arrangement:
        """The row as it will be, and what is remembered of a gap."""
        result, row = self.result, self.row
        gap = self.mode == "hot" and (bool(self.held) or self.dropped_through_m > self.applied_m)
        since_ms = 0
        if gap:
            same = self.memory.since_ms and self.memory.before_m == self.applied_m
            since_ms = self.memory.since_ms if same else now_ms
        result.memory = GapMemory(row.epoch, self.applied_m, since_ms, self.dropped_through_m if gap else 0)
        alarm, alarm_detail = self._alarm(gap, now_ms - since_ms if gap else 0)
        progress = self.applied_m != row.applied_m
        result.shard = row._replace(
            mode=self.mode,
            applied_term=self.applied_term,
            applied_m=self.applied_m,
            applied_digest=self.digest,
            applied_at_ms=now_ms if progress else row.applied_at_ms,
            applied_event_ms=self._event_ms(),
            wanted_m=self._wanted_m(gap),
            since_ms=now_ms if result.closed else row.since_ms,
            alarm=alarm,
            alarm_detail=alarm_detail,
        )
        if result.closed and self.mode == "db":
            result.shard = _begin_db_epoch(result.shard)
        return result

    def _take_malformed(self, index: int, item: Incoming) -> None:
        if item.newer_version:
            self._halt("UNKNOWN_VERSION", f"{item.detail}: a newer leader writes what this worker cannot read")
            return
        # Nothing rests on it: what it may have been is missed as a gap, and a TERM or CLOSE is sent again.
        self.result.stale.append(StaleEntry(0, 0, 0, chain("", item.body), item.body))
        self._done(index)

    def _take_term(self, index: int, message: LogMessage) -> None:
        if message.term > self.row.term:
            self._halt("TERM_AHEAD", f"term {message.term} begins, the row has drawn {self.row.term}")
            return
        if message.term > self.applied_term:
            self.applied_term = message.term
            # The new leader goes on behind applied_m by itself: all that waits is of the old one.
            self.dropped_through_m = 0
            self._done(index)
            self._settle_held()
        else:
            self._done(index)

    def _take_close(self, index: int, message: LogMessage) -> None:
        if message.epoch < self.row.epoch or self.mode != "hot":
            self._done(index)
        elif self.applied_m >= message.after_m:
            self.mode = message.next_mode
            self.result.closed = True
            self._done(index)
            self._settle_held()
        else:
            self._hold(index)

    def _take_entries(self, index: int, message: LogMessage, entries: tuple[Entry, ...]) -> None:
        if self.mode != "hot":
            beyond = max(0, self.applied_m + 1 - message.first_m)
            self.result.duplicates += min(beyond, len(entries))
            self._list_stale(message, entries[beyond:], message.first_m + beyond)
            self._done(index)
            return
        if message.first_m > self.applied_m + 1:
            self._hold(index)
            return
        before_m = self.applied_m
        for m, entry in enumerate(entries, message.first_m):
            if m <= self.applied_m:
                if m == self.applied_m and entry.digest != self.digest:
                    self._halt("FORK", f"entry {m} has digest {entry.digest}, applied is {self.digest}")
                    return
                self.result.duplicates += 1
            elif not self._append(m, entry):
                return
        self._done(index)
        if self.applied_m > before_m:
            self._settle_held()

    def _append(self, m: int, entry: Entry) -> bool:
        if chain(self.digest, entry.payload) != entry.digest:
            self._halt("CHAIN_BREAK", f"entry {m} with digest {entry.digest} does not continue {self.digest}")
            return False
        if not entry.changes:
            self._halt("UNDECODABLE_ENTRY", f"entry {m}: {entry.detail or 'no changes'}")
            return False
        if self.stop is not None and self.stop.m <= m:
            self._halt(self.stop.alarm, self.stop.detail)
            return False
        self.result.taken.append(Taken(m, entry.digest, entry.changes))
        self.applied_m, self.digest = m, entry.digest
        return True

    def _list_stale(self, message: LogMessage, entries: tuple[Entry, ...], first_m: int) -> None:
        for m, entry in enumerate(entries, first_m):
            events = tuple(
                (event.inventory_key, event.seq)
                for change in entry.changes
                if isinstance(change, Change)
                for event in change.events
            )
            self.result.stale.append(
                StaleEntry(message.epoch, m, message.term, _storable_digest(entry), entry.payload, events)
            )

    def _hold(self, index: int) -> None:
        if len(self.held) < limits.WORKER_HELD_MESSAGES_MAX:
            self.held.append(index)
            self.result.verdicts[index] = Verdict.HELD
            return
        self.dropped_through_m = max(self.dropped_through_m, self.incoming[index].last_m)
        self.result.dropped += 1
        self._done(index)

    def _settle_held(self) -> None:
        """Take up again what waited and has found its place, or has lost its meaning."""
        for index in self.held:
            if self.result.stopped:
                return
            if self._reachable(self.incoming[index]):
                # It changes the list, and calls this again where it moves the log on: leave the rest to that call.
                self.held.remove(index)
                self.result.verdicts[index] = Verdict.PENDING
                self.take(index)
                self._settle_held()
                return

    def _reachable(self, item: Incoming) -> bool:
        message = item.message
        if message is None or message.term != self.applied_term or self.mode != "hot":
            return True
        first = message.after_m if message.type is MessageType.CLOSE else message.first_m - 1
        return first <= self.applied_m

    def _done(self, index: int) -> None:
        self.result.verdicts[index] = Verdict.DONE

    def _halt(self, alarm: str, detail: str) -> None:
        self.result.stopped = True
        self.alarm = (alarm, detail)

    def _alarm(self, gap: bool, gap_age_ms: int) -> tuple[str, str]:
        row = self.row
        if self.result.stopped:
            return self.alarm[0], self.alarm[1][:500]
        if gap and gap_age_ms >= GAP_ALARM_MS:
            return "GAP", f"entry {self.applied_m + 1} of epoch {row.epoch} is missing in the queue"
        moved = (self.applied_m, self.applied_term, self.mode) != (row.applied_m, row.applied_term, row.mode)
        if row.alarm in ALARMS and (moved or (row.alarm == "GAP" and not gap)):
            return "", ""
        return row.alarm, row.alarm_detail

    def _wanted_m(self, gap: bool) -> int:
        row = self.row
        if gap:
            return self.applied_m + 1
        if self.mode != "hot" or self.applied_term != row.applied_term or row.wanted_m <= self.applied_m:
            return 0
        # Another worker, or this one before a restart, missed something that has not come yet.
        return row.wanted_m

    def _event_ms(self) -> int:
        for entry in reversed(self.result.taken):
            for change in reversed(entry.changes):
                # An insane time is a fault of its event, found by the plan: it must not reach the row.
                if isinstance(change, Change) and 0 < change.at_ms <= limits.EXACT_INTEGER_MAX:
                    return change.at_ms
        return self.row.applied_event_ms
