"""The invariants over everything, on demand. Each check is one snapshot; what is in flight is no violation."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

import sql
from inventory.compare import KeyClass, Reading, proven
from inventory.moves import LineState
from inventory.observe import HeadMissing, opened_keys, read_keys
from inventory.shard_state import read_shard
from kernel import limits
from kernel.mysql_door import Database, Statement
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys

VIOLATIONS_MAX: Final = 100
"""Violations that one check reports; where there are more, the check is as wrong as it gets."""

ORDERS_PAGE: Final = 200

ORDER_PREFIX: Final = "o:"


@dataclass(slots=True)
class Check:
    """One invariant: how many things were looked at, and each that violates it, as fields by name."""

    name: str
    checked: int = 0
    violations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def ok(self) -> bool:
        """Whether the invariant holds."""
        return not self.violations


_IN_MYSQL: Final[tuple[tuple[str, Statement, Statement, tuple[str, ...]], ...]] = (
    (
        "balances_conserved",
        sql.load("audit_count_balances"),
        sql.load("audit_balances"),
        ("inventory_key", "available", "reserved", "sold", "consumed", "locked", "total"),
    ),
    (
        "ledger_gives_balances",
        sql.load("audit_count_balances"),
        sql.load("audit_ledger_against_balances"),
        ("inventory_key", "seq", "ledger_rows", "ledger_seq", "available", "reserved", "sold", "consumed", "locked"),
    ),
    (
        "after_images_chain",
        sql.load("audit_count_ledger"),
        sql.load("audit_after_images"),
        ("inventory_key", "seq", "kind", "ref"),
    ),
    (
        "lines_give_balances",
        sql.load("audit_count_balances"),
        sql.load("audit_lines_against_balances"),
        ("inventory_key", "reserved", "sold", "consumed", "lines_reserved", "lines_sold", "lines_consumed"),
    ),
    (
        "orders_count_their_lines",
        sql.load("audit_count_orders"),
        sql.load("audit_orders_against_lines"),
        ("tenant", "order_id", "line_count", "open_lines", "lines_found", "open_found"),
    ),
    (
        "lines_take_legal_paths",
        sql.load("audit_count_ledger"),
        sql.load("audit_line_paths"),
        ("tenant", "order_id", "inventory_key", "reserved", "confirmed", "released", "consumed", "returned"),
    ),
)


Told = Callable[[Check], None]
"""Called with a check that begins, and again when more of it has been looked at."""


def tell_nobody(_check: Check) -> None:
    """For whoever only wants the result."""


async def audit(database: Database, redis: RedisDoor, shard: int, told: Told = tell_nobody) -> list[Check]:
    """Check one shard in both stores; raises what the doors raise, for an audit that could not look proves nothing."""
    checks: list[Check] = []
    for name, count, violations, columns in _IN_MYSQL:
        told(Check(name))
        checks.append(await _in_mysql(database, shard, name, count, violations, columns))
        told(checks[-1])
    row = await read_shard(database, shard)
    keys, orders = Check("redis_equals_mysql"), Check("redis_orders_equal_mysql")
    if row.mode == "hot":
        names = EpochKeys(shard, row.epoch)
        try:
            await _compare_keys(database, redis, names, keys, told)
            await _compare_orders(database, redis, names, orders, told)
        except HeadMissing:
            keys.violations.append({"epoch": row.epoch, "finding": "the row is hot and Redis has no head"})
    return [*checks, keys, orders]


async def _in_mysql(
    database: Database, shard: int, name: str, count: Statement, violations: Statement, columns: Sequence[str]
) -> Check:
    async with database.transaction(timeout_ms=limits.AUDIT_STATEMENT_MS_MAX) as transaction:
        checked = await transaction.fetch_all(count, (shard,))
        rows = await transaction.fetch_all(violations, (shard, VIOLATIONS_MAX))
    found = [{column: _plain(value) for column, value in zip(columns, row, strict=True)} for row in rows]
    return Check(name, int(checked[0][0]), found)


def _plain(value: Any) -> str | int:
    """Sums come as decimals; everything the audit shows is text or a whole number."""
    return value if isinstance(value, str) else int(value)


async def _compare_keys(database: Database, redis: RedisDoor, names: EpochKeys, check: Check, told: Told) -> None:
    async for page in opened_keys(redis, names):
        readings = await read_keys(database, redis, names, page)
        check.checked += len(readings)
        told(check)
        suspects = {
            reading.inventory_key: reading
            for reading in readings
            if reading.key_class in {KeyClass.DRIFTED, KeyClass.LOST}
        }
        for second in await read_keys(database, redis, names, list(suspects)):
            if proven(suspects[second.inventory_key], second) and len(check.violations) < VIOLATIONS_MAX:
                check.violations.append(_key_violation(second))


def _key_violation(reading: Reading) -> dict[str, Any]:
    return {
        "inventory_key": reading.inventory_key,
        "class": reading.key_class.value,
        "redis": list(reading.redis.quantities) if reading.redis and reading.redis.quantities else None,
        "redis_seq": reading.redis.seq if reading.redis else None,
        "mysql": list(reading.mysql.quantities) if reading.mysql else None,
        "mysql_seq": reading.mysql.seq if reading.mysql else None,
    }


class OrderHead(msgspec.Struct, array_like=True):
    """Header of an order's record in Redis, see `lua/records.lua`. `m` is 0 where it was loaded from MySQL."""

    fingerprint: str
    due_ms: int
    buyer_id: str
    created_ms: int
    line_count: int
    m: int


class OrderLine(msgspec.Struct, array_like=True):
    """One line of an order's record in Redis."""

    inventory_key: str
    qty: int
    state: int
    reason: str
    epoch: int
    seq: int


async def _compare_orders(database: Database, redis: RedisDoor, names: EpochKeys, check: Check, told: Told) -> None:
    """Records in Redis whose last entry MySQL has applied must say what MySQL says."""
    async for members in _order_members(redis, names):
        row = await read_shard(database, names.shard)
        replies = await redis.commands([("HGETALL", names.prefix + member) for member in members])
        records = {member: _record(flat) for member, flat in zip(members, replies, strict=True)}
        # A record that changes between the two readings shows a higher m when it is read again.
        applied = {
            member: record for member, record in records.items() if record is not None and record[0].m <= row.applied_m
        }
        in_mysql = await _lines_in_mysql(database, applied)
        check.checked += len(applied)
        told(check)
        for member, (head, lines) in applied.items():
            expected = sorted((line.inventory_key, line.qty, line.state, line.seq) for line in lines)
            if expected == in_mysql.get(member, []) or len(check.violations) >= VIOLATIONS_MAX:
                continue
            again = await read_record(redis, names, member)
            if again is not None and again[0].m == head.m:
                violation = {"order": member, "redis": _lines(expected), "mysql": _lines(in_mysql.get(member, []))}
                check.violations.append(violation)


def _lines(lines: Sequence[tuple[str, int, int, int]]) -> list[list[Any]]:
    return [[key, qty, LineState(state).name, seq] for key, qty, state, seq in lines]


async def _order_members(redis: RedisDoor, names: EpochKeys) -> AsyncIterator[list[str]]:
    for name in (names.due, names.settled):
        cursor = 0
        while True:
            answer: list[Any] = await redis.command("ZSCAN", name, cursor, "COUNT", ORDERS_PAGE)
            cursor = int(answer[0])
            members = [member.decode() for member in answer[1][::2] if member.startswith(ORDER_PREFIX.encode())]
            if members:
                yield members
            if cursor == 0:
                break


async def read_record(redis: RedisDoor, names: EpochKeys, member: str) -> tuple[OrderHead, list[OrderLine]] | None:
    """An order's record; None without one. Raises msgspec.MsgspecError where it is damaged, and what the door raises."""
    return _record(await redis.command("HGETALL", names.prefix + member))


def _record(flat: list[bytes]) -> tuple[OrderHead, list[OrderLine]] | None:
    """A record from its fields and values in turn."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if b"h" not in fields:
        return None
    head = msgspec.msgpack.decode(fields[b"h"], type=OrderHead)
    lines = [msgspec.msgpack.decode(value, type=OrderLine) for name, value in fields.items() if name.startswith(b"l:")]
    return head, lines


async def _lines_in_mysql(
    database: Database, members: dict[str, tuple[OrderHead, list[OrderLine]]]
) -> dict[str, list[tuple[str, int, int, int]]]:
    lines: dict[str, list[tuple[str, int, int, int]]] = {}
    pairs = [tuple(member.removeprefix(ORDER_PREFIX).split("/", 1)) for member in members]
    if not pairs:
        return lines
    for tenant, order_id, _position, key, qty, state, _epoch, seq in await database.fetch_all(
        sql.load("audit_orders_page"), (tuple(pairs),)
    ):
        lines.setdefault(f"{ORDER_PREFIX}{tenant}/{order_id}", []).append((key, qty, state, seq))
    return {member: sorted(found) for member, found in lines.items()}
