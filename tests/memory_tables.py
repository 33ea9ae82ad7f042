"""The tables of MySQL as dictionaries, with their keys and checks: what a plan writes is written here, at once.

For tests of the pure files. The worker's own tests write the same plans to a real server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inventory.events import genesis
from inventory.plan import Plan, plan
from inventory.sequence import Arrangement, GapMemory, Incoming, LockedShard, Verdict, arrange, read_message
from inventory.tables import BalanceRow, Facts, LineRow, OrderRow, touched
from tests.log_builder import NOW_MS, LogBuilder


def hot_row(shard: int = 0, epoch: int = 1, term: int = 1) -> LockedShard:
    """The row of a shard whose epoch has just been opened by a leader of this term."""
    return LockedShard(shard, "hot", epoch, term, term, 0, genesis(shard, epoch), 0, 0, 0, 0, 0, "", 0, "", "")


@dataclass
class MemoryTables:
    row: LockedShard = field(default_factory=hot_row)
    balances: dict[str, BalanceRow] = field(default_factory=dict)
    orders: dict[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    lines: dict[tuple[str, str, int], tuple[Any, ...]] = field(default_factory=dict)
    requests: dict[tuple[str, str], tuple[Any, ...]] = field(default_factory=dict)
    ledger: dict[tuple[str, int], tuple[Any, ...]] = field(default_factory=dict)
    parked: dict[tuple[str, int, int, int], tuple[Any, ...]] = field(default_factory=dict)
    stale: set[tuple[int, int, str]] = field(default_factory=set)
    memory: GapMemory = field(default_factory=GapMemory)
    held: list[Incoming] = field(default_factory=list)
    now_ms: int = NOW_MS

    @classmethod
    def for_log(cls, log: LogBuilder, *, row: LockedShard | None = None) -> "MemoryTables":
        """Tables in which every key of the log exists and nothing has happened."""
        tables = cls(row=row or hot_row(log.shard, 1, log.term))
        tables.balances = {key: BalanceRow(0, 0, 0, 0, 0, 0, 0, 0) for key in log.keys}
        return tables

    def apply(self, *bodies: bytes, proven: Mapping[tuple[int, int, str], str] | None = None) -> Plan:
        """One transaction of the worker, committed; what is held waits for the next call."""
        incoming = [*self.held, *(read_message(body, self.row.shard_no) for body in bodies)]
        arrangement = arrange(self.row, incoming, self.memory, self.now_ms)
        planned = plan(self.row, arrangement, self.facts(arrangement), self.now_ms, proven)
        if planned.stop:
            arrangement = arrange(self.row, incoming, self.memory, self.now_ms, planned.stop)
            planned = plan(self.row, arrangement, self.facts(arrangement), self.now_ms, proven)
        self.write(planned)
        self.memory = planned.memory
        self.held = [item for item, verdict in zip(incoming, planned.verdicts, strict=True) if verdict is Verdict.HELD]
        return planned

    def crash(self) -> None:
        """The worker dies: what it held in memory is gone, and will be delivered again by whoever tests that."""
        self.held, self.memory = [], GapMemory()

    def facts(self, arrangement: Arrangement) -> Facts:
        names = touched(change for taken in arrangement.taken for change in taken.changes)
        applied = {(row[3], row[4]) for row in self.ledger.values()} | {(e, m) for _, e, m, _ in self.parked}
        return Facts(
            balances={key: self.balances[key] for key in names.keys & self.balances.keys()},
            orders={n: OrderRow(*self.orders[n][3:11]) for n in names.orders & self.orders.keys()},
            lines={n: LineRow(*row[3:6]) for n, row in self.lines.items() if n[:2] in names.orders},
            requests=names.requests & self.requests.keys(),
            parked=len(self.parked),
            listed={(e.epoch, e.m, e.digest) for e in arrangement.stale} & self.stale,
            applied={(e.epoch, e.m) for e in arrangement.stale} & applied,
        )

    def write(self, planned: Plan) -> None:
        tables = planned.tables
        insert(self.ledger, tables.ledger_rows, 2)
        insert(self.requests, tables.request_rows, 2)
        self.orders |= {(row[0], row[1]): row for row in tables.order_rows}
        self.lines |= {(row[0], row[1], row[2]): row for row in tables.line_rows}
        for key, _, *values in tables.balance_rows:
            available, reserved, sold, consumed, locked, total, seq, version, held, _ = values
            assert total == available + reserved + sold + consumed + locked
            assert min(available, reserved, sold, consumed, locked) >= 0
            self.balances[key] = BalanceRow(available, reserved, sold, consumed, locked, seq, version, held)
        insert(self.parked, planned.parked, 4)
        self.stale |= {(entry.epoch, entry.m, entry.digest) for entry in planned.stale}
        self.row = planned.shard
        assert self.row.applied_term <= self.row.term

    def image(self) -> dict[str, Any]:
        """Everything that must be the same however a log was grouped, repeated and delivered."""
        return {
            "applied": (self.row.epoch, self.row.mode, self.row.applied_m, self.row.applied_digest),
            "balances": dict(sorted(self.balances.items())),
            "orders": dict(sorted(self.orders.items())),
            "lines": dict(sorted(self.lines.items())),
            "requests": dict(sorted(self.requests.items())),
            "ledger": dict(sorted(self.ledger.items())),
            "parked": {name: row[:-1] for name, row in sorted(self.parked.items())},
        }

    def quantities(self, key: str) -> tuple[int, int, int, int, int]:
        return self.balances[key][:5]


def insert(table: dict[Any, tuple[Any, ...]], rows: Sequence[tuple[Any, ...]], columns: int) -> None:
    """INSERT: the first columns are the primary key, rows come in its order, and no row is there yet."""
    names = [row[:columns] for row in rows]
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert not table.keys() & set(names), "a row with this key exists"
    table.update(zip(names, rows, strict=True))
