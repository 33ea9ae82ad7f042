"""Why a key's number is what it is: both stores side by side, what is on its way between them, and how it came about.

MySQL is read before Redis, as the reconciler does, and nothing is called lost or drifted on one reading. Where a store does
not answer, what the other one has is shown, and what is missing is named.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

import sql
from inventory.compare import InMySQL, InRedis, KeyClass, classify
from inventory.explain_log import HeadReading, InFlight, LogView, newest_epoch, read_head, read_in_flight
from inventory.explain_stores import PARKED_MAX, Parked, ShardFacts, Stale, parked_of, read_stale, where_it_waits
from inventory.explain_timeline import Amounts, Step, amounts, checked_key, ledger_step, quantities_of
from inventory.explain_verdict import (
    ExplainedClass,
    Finding,
    closed,
    cold_key,
    contradiction,
    decided_by_mysql,
    drifted_key,
    healthy_key,
    held_key,
    in_flight_key,
    lost_key,
    numbers,
    rejected_key,
    stale,
    undetermined,
)
from inventory.moves import Quantities
from inventory.observe import HeadMissing, RedisRow, rows_in_redis
from inventory.shard_state import NoSuchShard
from inventory.tables import HELD
from kernel.clock import instant
from kernel.errors import StoreUnavailable
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys

REPAIRS_MAX: Final = 20
READINGS_MAX: Final = 4
"""Readings of a key that looks wrong: two that agree prove it, more are needed only while it is being changed."""


class InRedisView(msgspec.Struct, frozen=True):
    """The key in Redis. `state` is `loaded`, `cold` (not opened in this epoch) or `lost`; numbers only where loaded."""

    state: str
    quantities: Amounts | None
    seq: int | None
    inventory_version: int | None
    frozen: bool


class InMySQLView(msgspec.Struct, frozen=True):
    """The key's balance in MySQL. `held`: `no`, `held` (events are parked) or `until_close` (one was rejected)."""

    quantities: Amounts
    seq: int
    inventory_version: int
    held: str
    updated_at: datetime | None


class Created(msgspec.Struct, frozen=True):
    """How the key came to be."""

    at: datetime
    actor: str
    tenant: str
    request_no: str
    item_id: str
    inventory_mode: str
    init_status: str
    init_quantity: int


class Repair(msgspec.Struct, frozen=True):
    """A repair of this key that the reconciler or an operator made or asked for; images are JSON texts."""

    id: int
    at: datetime
    kind: str
    repaired_class: str = msgspec.field(name="class")
    status: str
    actor: str
    reason: str
    epoch: int
    seq: int
    before: str
    after: str


class KeyExplanation(msgspec.Struct, kw_only=True):
    """Everything that explains a key. `sentence` and `next_step` are the first finding's; `ok` is true if all are well."""

    inventory_key: str
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
    redis: InRedisView | None
    mysql: InMySQLView | None
    log: LogView | None
    in_flight: InFlight | None
    parked: list[Parked]
    parked_more: bool
    stale: list[Stale]
    created: Created | None
    repairs: list[Repair]
    timeline: list[Step]
    """The newest change first."""
    next_before: int | None
    """`before` of the next page; null where the timeline ends."""


class _Facts(NamedTuple):
    """What MySQL said."""

    shard: ShardFacts
    balance: InMySQLView | None
    created: Created | None


class _Reading(NamedTuple):
    """Both stores in one look, MySQL first. None where a store did not answer, or Redis has no such head."""

    facts: _Facts | None
    epoch: int
    redis: InRedisView | None
    head: HeadReading | None
    missing: tuple[str, ...]

    @property
    def of_key(self) -> tuple[object, ...]:
        """What belongs to the key alone: the same twice proves that it was not caught in a move."""
        return self.facts and self.facts.balance, self.epoch, self.redis

    @property
    def key_class(self) -> KeyClass | None:
        """The class; None where the two cannot be compared."""
        if self.facts is None or self.redis is None or self.facts.shard.mode != "hot":
            return None
        balance, there = self.facts.balance, self.redis
        in_mysql = InMySQL(quantities_of(balance.quantities), balance.seq) if balance else None
        if there.state == "cold":
            return classify(in_mysql, None)
        quantities = quantities_of(there.quantities) if there.quantities else None
        return classify(in_mysql, InRedis(quantities, there.seq or 0))


class _MySQLPart(NamedTuple):
    """What explains the number in MySQL, all of it read after the balance."""

    steps: list[Step]
    next_before: int | None
    parked: list[Parked]
    stale: list[Stale]
    repairs: list[Repair]
    contradictions: list[str]


async def explain_key(
    database: Database, redis: RedisDoor, shard: int, key: str, limit: int, before: int
) -> KeyExplanation | None:
    """Explain a key with a page of its timeline: the newest `limit` changes of a seq below `before`.

    None for a key that neither store knows. Raises NoSuchShard, and of the doors' failures only what is no absence.
    """
    reading = await _read_until_proven(database, redis, shard, key)
    facts, missing = reading.facts, list(reading.missing)
    told: _MySQLPart | None = None
    if facts is not None:
        try:
            told = await _explain_in_mysql(database, shard, key, facts, limit, before)
        except StoreUnavailable as away:
            missing.append(away.store)
    in_flight: InFlight | None = None
    if reading.head is not None:
        applied_m = facts.shard.applied_m if facts else None
        names = EpochKeys(shard, reading.epoch)
        try:
            in_flight = await read_in_flight(
                redis, names, reading.head, applied_m, lambda _, event: event.inventory_key == key
            )
        except StoreUnavailable as away:
            missing.append(away.store)
    is_known = facts is None or facts.balance or facts.created or reading.redis is None or reading.redis.state != "cold"
    if not is_known:
        return None
    return _explanation(key, shard, reading, told, in_flight, list(dict.fromkeys(missing)))


# --- reading ----------------------------------------------------------------------------------------------------------


async def _read_until_proven(database: Database, redis: RedisDoor, shard: int, key: str) -> _Reading:
    before: _Reading | None = None
    for _ in range(READINGS_MAX):
        reading = await _read_once(database, redis, shard, key)
        if reading.key_class not in {KeyClass.DRIFTED, KeyClass.LOST}:
            return reading
        if before is not None and before.of_key == reading.of_key:
            return reading
        before = reading
    # It is being changed while it is looked at, and yet each look finds the same kind of wrong.
    return reading  # pyright: ignore[reportPossiblyUnboundVariable] -- the loop runs at least once


async def _read_once(database: Database, redis: RedisDoor, shard: int, key: str) -> _Reading:
    missing: list[str] = []
    facts: _Facts | None = None
    there: InRedisView | None = None
    head: HeadReading | None = None
    epoch = 0
    try:
        facts = await _read_facts(database, shard, key)
        epoch = facts.shard.epoch
    except StoreUnavailable as away:
        missing.append(away.store)
    try:
        if facts is None:
            epoch = await newest_epoch(redis, shard)
        names = EpochKeys(shard, epoch)
        head = await read_head(redis, names)
        there = _in_redis((await rows_in_redis(redis, names, [key]))[0])
    except HeadMissing:
        head = None
    except StoreUnavailable as away:
        missing.append(away.store)
    return _Reading(facts, epoch, there, head, tuple(missing))


def _in_redis(row: RedisRow) -> InRedisView:
    if row.state != 1:
        return InRedisView("cold" if row.state == 0 else "lost", None, None, None, frozen=False)
    quantities = Quantities(row.available, row.reserved, row.sold, row.consumed, row.locked)
    return InRedisView("loaded", amounts(quantities), row.seq, row.version, frozen=bool(row.frozen))


async def _read_facts(database: Database, shard: int, key: str) -> _Facts:
    rows = await database.fetch_all(sql.load("select_key_to_explain"), (key, key, shard))
    if not rows:
        raise NoSuchShard(f"no row for shard {shard}: run `stockgate migrate`")
    row: Sequence[Any] = rows[0]
    seq, version, held, updated_ms = row[12:16]
    balance = None
    if seq is not None:
        word = "held" if held & HELD else "until_close" if held else "no"
        updated_at = instant(updated_ms) if updated_ms else None
        balance = InMySQLView(amounts(Quantities(*row[7:12])), seq, version, word, updated_at)
    item_id, mode, status, init_quantity, tenant, request_no, created_by, created_at = row[16:]
    created = None
    if item_id is not None:
        at = created_at.replace(tzinfo=UTC)
        created = Created(at, created_by, tenant, request_no, item_id, mode, status, init_quantity)
    return _Facts(ShardFacts(*row[:7]), balance, created)


async def _explain_in_mysql(
    database: Database, shard: int, key: str, facts: _Facts, limit: int, before: int
) -> _MySQLPart:
    # One row more than is shown: the last one shown is held against it.
    rows = await database.fetch_all(sql.load("select_ledger_to_explain"), (key, before, limit + 1))
    parked = await database.fetch_all(sql.load("select_parked_events_of_key"), (key, PARKED_MAX + 1))
    repairs = await database.fetch_all(sql.load("select_repairs_to_explain"), (key, REPAIRS_MAX))
    steps = [ledger_step(row) for row in rows]
    shown = checked_key(steps, limit)
    wrong = [f"seq {step.seq}: {step.contradiction}" for step in shown if step.contradiction]
    if facts.balance is not None and before > facts.balance.seq:
        wrong[:0] = _against_balance(steps, facts.balance)
    return _MySQLPart(
        shown,
        shown[-1].seq if len(steps) > limit else None,
        parked_of(parked),
        await read_stale(database, shard, key, is_key=True),
        [_repair(row) for row in repairs],
        wrong,
    )


def _repair(row: Sequence[Any]) -> Repair:
    repair_id, kind, repaired_class, status, epoch, seq, before, after, reason, actor, created_ms = row
    return Repair(
        repair_id, instant(created_ms), kind, repaired_class, status, actor, reason, epoch, seq, before, after
    )


def _against_balance(steps: Sequence[Step], balance: InMySQLView) -> list[str]:
    """What the newest step says that the balance does not. The balance was read before, so later steps may be there."""
    if not balance.seq:
        empty = quantities_of(balance.quantities) == Quantities(0, 0, 0, 0, 0)
        return [] if empty else ["the balance is not empty and has no change in the ledger"]
    if not steps or steps[0].seq < balance.seq:
        return [f"the balance is at seq {balance.seq}, the ledger ends at {steps[0].seq if steps else 0}"]
    last = next((step for step in steps if step.seq == balance.seq), None)
    if last is not None and last.after != balance.quantities:
        return [
            f"the balance says {numbers(balance.quantities)}, the ledger at seq {balance.seq} {numbers(last.after)}"
        ]
    return []


# --- judging ----------------------------------------------------------------------------------------------------------


def _explanation(
    key: str,
    shard: int,
    reading: _Reading,
    told: _MySQLPart | None,
    in_flight: InFlight | None,
    missing: list[str],
) -> KeyExplanation:
    facts, head = reading.facts, reading.head
    log = None
    if head is not None:
        log = LogView(head.m, head.confirmed_m, facts.shard.applied_m if facts else None, head.fenced)
    findings = [_chief(key, shard, reading, told, in_flight, log, missing)]
    if told is not None and told.contradictions:
        findings.insert(0, contradiction("key", len(told.contradictions), told.contradictions[0]))
    if facts is not None:
        findings += facts.shard.findings()
    if told is not None and told.stale:
        findings.append(stale(len(told.stale), sorted({one.ref for one in told.stale}), "key"))
    return KeyExplanation(
        inventory_key=key,
        ok=all(finding.ok for finding in findings),
        found=findings[0].found,
        sentence=findings[0].sentence,
        next_step=findings[0].next_step,
        findings=findings,
        missing=missing,
        shard=shard,
        mode=facts.shard.mode if facts else None,
        epoch=reading.epoch or None,
        redis=reading.redis,
        mysql=facts.balance if facts else None,
        log=log,
        in_flight=in_flight,
        parked=told.parked[:PARKED_MAX] if told else [],
        parked_more=told is not None and len(told.parked) > PARKED_MAX,
        stale=told.stale if told else [],
        created=facts.created if facts else None,
        repairs=told.repairs if told else [],
        timeline=told.steps if told else [],
        next_before=told.next_before if told else None,
    )


def _chief(  # noqa: PLR0911 -- one return for each class
    key: str,
    shard: int,
    reading: _Reading,
    told: _MySQLPart | None,
    in_flight: InFlight | None,
    log: LogView | None,
    missing: Sequence[str],
) -> Finding:
    """The finding that gives the key its class."""
    facts, there = reading.facts, reading.redis
    in_db_mode = facts is not None and facts.shard.mode == "db"
    if facts is None or told is None or ("redis" in missing and not in_db_mode):
        return undetermined(missing, _known(facts.balance if facts else None, there))
    balance = facts.balance
    if balance is not None and balance.held == "held":
        reason = told.parked[0].reason if told.parked else "the reason is not written down"
        return held_key(key, len(told.parked[:PARKED_MAX]), len(told.parked) > PARKED_MAX, reason)
    if balance is not None and balance.held == "until_close":
        return rejected_key(key, shard, balance.quantities)
    if in_db_mode:
        return decided_by_mysql(reading.epoch)
    if facts.shard.mode != "hot" or there is None:
        reason = facts.shard.rebuild_reason if facts.shard.rebuild_wanted else ""
        return closed(facts.shard.mode, reading.epoch, reason, headless=facts.shard.mode == "hot")
    match reading.key_class:
        case KeyClass.HEALTHY if balance is not None:
            return healthy_key(balance.quantities, balance.seq)
        case KeyClass.IN_FLIGHT if balance is not None and there.quantities is not None and there.seq is not None:
            last_m = max((step.m for step in in_flight.changes), default=0) if in_flight else 0
            where = where_it_waits(log, last_m)
            return in_flight_key(key, there.quantities, there.seq - balance.seq, where)
        case KeyClass.DRIFTED if balance is not None and there.quantities is not None:
            return drifted_key(key, there.quantities, balance.quantities, balance.seq)
        case KeyClass.COLD if balance is not None:
            return cold_key(balance.quantities, reading.epoch)
        case _:
            return lost_key(key, shard, balance.quantities if balance else None, _why_lost(balance, there))


def _why_lost(balance: InMySQLView | None, there: InRedisView) -> str:
    if balance is None:
        return "Redis has it, MySQL does not" if there.state == "loaded" else "neither store has its balance"
    if there.seq is None:
        return "it was opened in this epoch, and its balance is absent or damaged"
    return f"Redis is at seq {there.seq}, behind MySQL's {balance.seq}"


def _known(balance: InMySQLView | None, there: InRedisView | None) -> str:
    """What the store that did answer says."""
    if there is not None and there.quantities is not None:
        return f"Redis, which decides, says {numbers(there.quantities)} at seq {there.seq}."
    if balance is not None:
        return f"MySQL says {numbers(balance.quantities)} at seq {balance.seq}; Redis may be ahead of it."
    return "What did answer does not know the key's numbers."
