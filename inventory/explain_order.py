"""Why an order stands as it does: its record in Redis and its rows in MySQL side by side, and all that happened to it.

Read and judged as a key is (`inventory.explain_key`): MySQL before Redis, nothing called wrong on one reading.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

import sql
from inventory.audit import OrderHead, OrderLine, read_record
from inventory.explain_log import HeadReading, InFlight, LogView, newest_epoch, read_head, read_in_flight
from inventory.explain_stores import PARKED_MAX, Parked, ShardFacts, Stale, parked_of, read_stale, where_it_waits
from inventory.explain_timeline import Step, checked_order, last_states, ledger_step, state_name
from inventory.explain_verdict import (
    ExplainedClass,
    Finding,
    closed,
    cold_order,
    contradiction,
    decided_by_mysql,
    drifted_order,
    healthy_order,
    held_order,
    in_flight_order,
    lost_order,
    never_took_effect,
    overdue,
    rejected_order,
    stale,
    undetermined,
)
from inventory.moves import ORDER_MOVES, Move
from inventory.observe import balances_in_mysql
from inventory.operator_actions import BadCursor
from inventory.shard_state import NoSuchShard
from kernel import limits
from kernel.clock import SYSTEM_CLOCK, instant
from kernel.errors import ScriptFailed, StoreUnavailable
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys

READINGS_MAX: Final = 4
OVERDUE_LATE_S: Final = 60
"""A hold that is due for longer than this should have been released by the sweeper."""

FIRST_PLACE: Final = (0, 0, 0, "", 0)
Place = tuple[int, int, int, str, int]
"""Where a step stands in an order's timeline: epoch, m, number of the move, key, seq."""


class LineSide(msgspec.Struct, frozen=True):
    """One line in one store; (epoch, seq) is its last change on its key."""

    qty: int
    status: str
    reason: str
    epoch: int
    seq: int


class ExplainedLine(msgspec.Struct, frozen=True):
    """One line, both stores side by side; null where that store has no such line or was not asked."""

    inventory_key: str
    redis: LineSide | None
    mysql: LineSide | None
    key_held: bool


class OrderExplanation(msgspec.Struct, kw_only=True):
    """Everything that explains an order. `sentence` and `next_step` are the first finding's; `ok`: all are well."""

    tenant: str
    order_id: str
    ok: bool
    found: ExplainedClass = msgspec.field(name="class")
    sentence: str
    next_step: str
    findings: list[Finding]
    missing: list[str]
    """Of `mysql`, `redis`: what did not answer."""
    shard: int
    mode: str | None
    epoch: int | None
    status: str
    """That of its lines, or `MIXED`; `UNKNOWN` where no line is known."""
    buyer_id: str
    created_at: datetime | None
    due_at: datetime | None
    """When the hold ends, with the grace after an opening; null once no line is reserved."""
    lines: list[ExplainedLine]
    log: LogView | None
    in_flight: InFlight | None
    parked: list[Parked]
    parked_more: bool
    stale: list[Stale]
    timeline: list[Step]
    """All lines' changes in the order in which they were decided, the first one first."""
    next_after: str | None
    """`after` of the next page; null where the timeline ends."""
    trace_ids: list[str]
    """Of all steps that are shown: what to look for in logs and traces."""
    actors: list[str]


class _Header(NamedTuple):
    """`inventory_order`, as far as it explains something. Times are UTC epoch ms."""

    buyer_id: str
    line_count: int
    open_lines: int
    due_ms: int
    created_ms: int


class _InMySQL(NamedTuple):
    shard: ShardFacts
    header: _Header | None
    lines: dict[str, LineSide]
    held_keys: frozenset[str]
    steps: list[Step]
    """Checked, where the whole timeline is there."""
    next_after: str | None
    parked: list[Parked]
    stale: list[Stale]
    wrong: list[str]
    """Where the rows do not agree with each other."""


class _Record(NamedTuple):
    """The record in Redis; `lost` where nobody can read it."""

    head: OrderHead | None
    lines: dict[str, LineSide]
    lost: bool


class _Reading(NamedTuple):
    mysql: _InMySQL | None
    epoch: int
    head: HeadReading | None
    record: _Record | None
    """None without a record, and where Redis was not to be asked."""
    missing: tuple[str, ...]

    @property
    def is_unknown(self) -> bool:
        """Whether both stores were asked and neither knows the order."""
        told = self.mysql
        known = self.record or told is None or told.header or told.lines or told.steps or told.parked or told.stale
        return not known and not self.missing

    @property
    def is_in_flight(self) -> bool:
        """Whether Redis has decided something that MySQL has not applied."""
        applied_m = self.mysql.shard.applied_m if self.mysql else 0
        return self.record is not None and self.record.head is not None and self.record.head.m > applied_m

    @property
    def suspicion(self) -> object:
        """What has to be found twice before it is said; false where nothing looks wrong."""
        wrong = self.mysql.wrong if self.mysql else []
        differing = self.differing()
        return (self.is_unknown, differing, wrong, self.record) if self.is_unknown or differing or wrong else None

    def differing(self) -> list[str]:
        """Keys of the lines about which the stores disagree though MySQL has the last change."""
        if self.mysql is None or self.record is None or self.record.lost or self.is_in_flight:
            return []
        mine, theirs = self.record.lines, self.mysql.lines
        return [key for key in dict.fromkeys(chain(mine, theirs)) if _same(mine.get(key)) != _same(theirs.get(key))]


def _same(side: LineSide | None) -> tuple[int, str, int] | None:
    return None if side is None else (side.qty, side.status, side.seq)


async def explain_order(
    database: Database, redis: RedisDoor, shard: int, tenant: str, order_id: str, limit: int, after: str
) -> OrderExplanation | None:
    """Explain an order with a page of its timeline: the first `limit` changes behind the cursor `after` ("" = all).

    None for an order that neither store knows. Raises BadCursor, NoSuchShard, and of the doors' failures only what is no
    absence.
    """
    place = read_place(after)
    reading = await _read_once(database, redis, shard, tenant, order_id, limit, place)
    for _ in range(READINGS_MAX - 1):
        # A record that leaves Redis between the two looks is in MySQL by then: an unknown order is looked for twice too.
        suspicion = reading.suspicion
        if not suspicion:
            break
        reading = await _read_once(database, redis, shard, tenant, order_id, limit, place)
        if reading.suspicion == suspicion:
            break
    in_flight: InFlight | None = None
    missing = list(reading.missing)
    if reading.head is not None:
        applied_m = reading.mysql.shard.applied_m if reading.mysql else None
        names = EpochKeys(shard, reading.epoch)
        wanted = (tenant, order_id)
        try:
            in_flight = await read_in_flight(
                redis,
                names,
                reading.head,
                applied_m,
                lambda change, _: (change.tenant, change.ref) == wanted and change.kind in ORDER_MOVES,
            )
        except StoreUnavailable as away:
            missing.append(away.store)
    if reading.is_unknown and not missing and not (in_flight and in_flight.changes):
        return None
    return _explanation(tenant, order_id, shard, reading, in_flight, missing)


# --- the cursor -------------------------------------------------------------------------------------------------------


def place_text(place: Place) -> str:
    """The cursor of a place. The key comes last: it may hold any character."""
    epoch, m, kind, key, seq = place
    return f"{epoch}.{m}.{kind}.{seq}.{key}"


def read_place(cursor: str) -> Place:
    """The place of a cursor, the first one for ""; raises BadCursor."""
    if not cursor:
        return FIRST_PLACE
    *numbers, key = cursor.split(".", 4)
    if len(numbers) != 4 or not key.isascii() or len(key) > limits.INVENTORY_KEY_CHARS_MAX:
        raise BadCursor("the cursor is not one that a page gave")
    if not all(number.isascii() and number.isdecimal() and len(number) < 17 for number in numbers):
        raise BadCursor("the cursor is not one that a page gave")
    epoch, m, kind, seq = map(int, numbers)
    return epoch, m, kind, key, seq


# --- reading ----------------------------------------------------------------------------------------------------------


async def _read_once(
    database: Database, redis: RedisDoor, shard: int, tenant: str, order_id: str, limit: int, place: Place
) -> _Reading:
    missing: list[str] = []
    told: _InMySQL | None = None
    head: HeadReading | None = None
    record: _Record | None = None
    epoch = 0
    try:
        told = await _read_mysql(database, shard, tenant, order_id, limit, place)
        epoch = told.shard.epoch
    except StoreUnavailable as away:
        missing.append(away.store)
    try:
        if told is None:
            epoch = await newest_epoch(redis, shard)
        names = EpochKeys(shard, epoch)
        head = await read_head(redis, names)
        # The names of an epoch that is over may still be there; without its head they mean nothing.
        if head is not None:
            record = await _read_redis(redis, names, tenant, order_id)
    except StoreUnavailable as away:
        missing.append(away.store)
    return _Reading(told, epoch, head, record, tuple(missing))


async def _read_redis(redis: RedisDoor, names: EpochKeys, tenant: str, order_id: str) -> _Record | None:
    try:
        found = await read_record(redis, names, names.order(tenant, order_id).removeprefix(names.prefix))
    except (msgspec.MsgspecError, ScriptFailed):
        return _Record(None, {}, lost=True)
    if found is None:
        return None
    head, lines = found
    return _Record(head, {line.inventory_key: _redis_side(line) for line in lines}, lost=len(lines) != head.line_count)


def _redis_side(line: OrderLine) -> LineSide:
    return LineSide(line.qty, state_name(line.state), line.reason, line.epoch, line.seq)


async def _read_mysql(database: Database, shard: int, tenant: str, order_id: str, limit: int, place: Place) -> _InMySQL:
    rows = await database.fetch_all(sql.load("select_order_to_explain"), (tenant, order_id, shard))
    if not rows:
        raise NoSuchShard(f"no row for shard {shard}: run `stockgate migrate`")
    line_rows = await database.fetch_all(sql.load("select_order_lines"), (((tenant, order_id),),))
    lines = {
        key: LineSide(qty, state_name(state), reason, epoch, seq)
        for _, _, key, qty, state, reason, epoch, seq in line_rows
    }
    ledger = await database.fetch_all(sql.load("select_order_ledger_to_explain"), (tenant, order_id, *place, limit + 1))
    parked_rows = await database.fetch_all(
        sql.load("select_parked_events_of_order"), (tenant, order_id, PARKED_MAX + 1)
    )
    parked = parked_of(parked_rows)
    keys = list(dict.fromkeys([*lines, *(one.inventory_key for one in parked)]))
    balances = await balances_in_mysql(database, keys) if keys else {}
    found = await read_stale(database, shard, order_id, is_key=False)
    is_whole = place == FIRST_PLACE and len(ledger) <= limit
    steps = [ledger_step(row) for row in ledger[:limit]]
    if is_whole:
        steps = checked_order(steps)
    header = _header(rows[0][7:])
    return _InMySQL(
        ShardFacts(*rows[0][:7]),
        header,
        lines,
        frozenset(key for key, balance in balances.items() if balance.held),
        steps,
        place_text(_place(ledger[limit - 1])) if len(ledger) > limit else None,
        parked,
        [one for one in found if one.tenant == tenant],
        # What is parked, or was rejected, explains what is missing.
        _contradictions(header, lines, steps) if is_whole and not parked and not _rejected(steps) else [],
    )


def _rejected(steps: Sequence[Step]) -> list[Step]:
    return [step for step in steps if step.move == Move.REJECTED.name]


def _header(row: Sequence[Any]) -> _Header | None:
    return None if row[0] is None else _Header(*row[:5])


def _place(row: Sequence[Any]) -> Place:
    key, seq, epoch, m, kind = row[:5]
    return epoch, m, kind, key, seq


# --- judging ----------------------------------------------------------------------------------------------------------


def _explanation(
    tenant: str,
    order_id: str,
    shard: int,
    reading: _Reading,
    in_flight: InFlight | None,
    missing: list[str],
) -> OrderExplanation:
    told, record, head = reading.mysql, reading.record, reading.head
    timeline = told.steps if told else []
    lines = _lines(told, record)
    status = _order_status(lines)
    log = LogView(head.m, head.confirmed_m, told.shard.applied_m if told else None, head.fenced) if head else None
    due = _due(told, record, head) if any("RESERVED" in _sides(line) for line in lines) else None
    findings = [_chief(shard, reading, in_flight, lines, status, log, missing)]
    if told is not None:
        if told.wrong:
            findings.insert(0, contradiction("order", len(told.wrong), told.wrong[0]))
        if lines and (rejected := _rejected(timeline)):
            findings.insert(0, _rejected_finding(rejected))
        findings += told.shard.findings()
        if told.stale and lines:
            findings.append(stale(len(told.stale), sorted({one.move for one in told.stale}), "order"))
    if due is not None and not missing:
        now_ms = head.now_ms if head else SYSTEM_CLOCK.now_ms()
        seconds = int(now_ms / 1000 - due.timestamp())
        if seconds > 0:
            findings.append(overdue(due, seconds, late=seconds > OVERDUE_LATE_S and findings[0].ok))
    steps = [*timeline, *(in_flight.changes if in_flight else [])]
    return OrderExplanation(
        tenant=tenant,
        order_id=order_id,
        ok=all(finding.ok for finding in findings),
        found=findings[0].found,
        sentence=findings[0].sentence,
        next_step=findings[0].next_step,
        findings=findings,
        missing=list(dict.fromkeys(missing)),
        shard=shard,
        mode=told.shard.mode if told else None,
        epoch=reading.epoch or None,
        status=status,
        buyer_id=_buyer(told, record),
        created_at=_created_at(told, record),
        due_at=due,
        lines=lines,
        log=log,
        in_flight=in_flight,
        parked=told.parked[:PARKED_MAX] if told else [],
        parked_more=told is not None and len(told.parked) > PARKED_MAX,
        stale=told.stale if told else [],
        timeline=timeline,
        next_after=told.next_after if told else None,
        trace_ids=list(dict.fromkeys(step.trace_id for step in steps if step.trace_id)),
        actors=list(dict.fromkeys(step.actor for step in steps if step.actor)),
    )


def _chief(  # noqa: PLR0911 -- one return for each class
    shard: int,
    reading: _Reading,
    in_flight: InFlight | None,
    lines: Sequence[ExplainedLine],
    status: str,
    log: LogView | None,
    missing: Sequence[str],
) -> Finding:
    """The finding that gives the order its class."""
    told, record = reading.mysql, reading.record
    in_db_mode = told is not None and told.shard.mode == "db"
    if told is None or (missing and not in_db_mode):
        known = (
            f"What did answer says that the order is {status}." if lines else "What did answer does not know the order."
        )
        return undetermined(missing, known)
    held_keys = sorted({*told.held_keys, *(one.inventory_key for one in told.parked)})
    if held_keys:
        return held_order(held_keys, told.parked[0].reason if told.parked else "")
    if not lines:
        if rejected := _rejected(told.steps):
            return _rejected_finding(rejected)
        return lost_order(shard) if in_flight and in_flight.changes else never_took_effect()
    if in_db_mode:
        return decided_by_mysql(reading.epoch)
    if told.shard.mode != "hot" or reading.head is None:
        reason = told.shard.rebuild_reason if told.shard.rebuild_wanted else ""
        return closed(told.shard.mode, reading.epoch, reason, headless=told.shard.mode == "hot")
    if record is None:
        return cold_order(status)
    if record.lost:
        return lost_order(shard)
    if reading.is_in_flight:
        return in_flight_order(status, where_it_waits(log, record.head.m if record.head else 0))
    if differing := reading.differing():
        return drifted_order(differing, shard)
    return healthy_order(status)


def _rejected_finding(rejected: Sequence[Step]) -> Finding:
    keys = list(dict.fromkeys(step.inventory_key for step in rejected))
    return rejected_order(keys, rejected[0].reason)


def _lines(told: _InMySQL | None, record: _Record | None) -> list[ExplainedLine]:
    in_mysql, in_redis = told.lines if told else {}, record.lines if record else {}
    held = told.held_keys if told else frozenset[str]()
    return [
        ExplainedLine(key, in_redis.get(key), in_mysql.get(key), key in held)
        for key in dict.fromkeys(chain(in_redis, in_mysql))
    ]


def _sides(line: ExplainedLine) -> tuple[str, ...]:
    """The line's status, as the store says it that decides; the other's only where that one has no record."""
    side = line.redis or line.mysql
    return (side.status,) if side else ()


def _order_status(lines: Sequence[ExplainedLine]) -> str:
    states = {status for line in lines for status in _sides(line)}
    return "UNKNOWN" if not states else states.pop() if len(states) == 1 else "MIXED"


def _due(told: _InMySQL | None, record: _Record | None, head: HeadReading | None) -> datetime | None:
    header = told.header if told else None
    due_ms = record.head.due_ms if record and record.head else header.due_ms if header else 0
    return instant(max(due_ms, head.grace_until_ms if head else 0)) if due_ms else None


def _buyer(told: _InMySQL | None, record: _Record | None) -> str:
    if record and record.head:
        return record.head.buyer_id
    return told.header.buyer_id if told and told.header else ""


def _created_at(told: _InMySQL | None, record: _Record | None) -> datetime | None:
    if record and record.head:
        return instant(record.head.created_ms)
    return instant(told.header.created_ms) if told and told.header else None


def _contradictions(header: _Header | None, lines: dict[str, LineSide], steps: Sequence[Step]) -> list[str]:
    """Where MySQL's rows of the order do not agree with each other; `steps` are all it ever made."""
    wrong = [f"{step.inventory_key} seq {step.seq}: {step.contradiction}" for step in steps if step.contradiction]
    left = last_states(steps)
    wrong += [
        f"line {key} is {side.status}, the ledger leaves it {left.get(key, 'NONE')}"
        for key, side in lines.items()
        if left.get(key, "NONE") != side.status
    ]
    if header is None:
        return [*wrong, "it has lines and no header"] if lines else wrong
    if header.line_count != len(lines):
        wrong.append(f"its header counts {header.line_count} lines, and there are {len(lines)}")
    still_open = sum(side.status == "RESERVED" for side in lines.values())
    if header.open_lines != still_open:
        wrong.append(f"its header counts {header.open_lines} open lines, and there are {still_open}")
    return wrong
