"""What MySQL decides on as dictionaries: each call reads its rows, decides, and writes, as one transaction does.

For tests of the pure `inventory.decide`. Every change that it accepts is judged by the rules of the persist worker too.
"""

from dataclasses import dataclass, field
from typing import Any

from inventory.decide import NO_ENTRY, Moment, Records, Request, WorkingCopy, keys_to_lock, within_bound
from inventory.events import Change
from inventory.moves import LineState, Quantities
from inventory.operations import Operation, Result
from inventory.outcomes import Outcome
from inventory.tables import BalanceRow, Facts, LineRow, OrderRow, Tables

EPOCH = 3
NOW_MS = 1_790_000_000_000


@dataclass
class RowsWorld:
    balances: dict[str, BalanceRow] = field(default_factory=dict)
    orders: dict[tuple[str, str], OrderRow] = field(default_factory=dict)
    lines: dict[tuple[str, str, int], LineRow] = field(default_factory=dict)
    records: Records = field(default_factory=Records)
    changes: list[Change] = field(default_factory=list)
    ledger: list[tuple[Any, ...]] = field(default_factory=list)
    now_ms: int = NOW_MS
    grace_until_ms: int = 0

    def stock(self, **available: int) -> None:
        for key, units in available.items():
            self.balances[key] = BalanceRow(units, 0, 0, 0, 0, 0, 0, 0)

    def hold(self, key: str, held: int = 1) -> None:
        self.balances[key] = self.balances[key]._replace(held=held)

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    def call(self, *ops: Operation) -> list[Result]:
        moment = Moment(EPOCH, self.now_ms, self.grace_until_ms)
        taken = ops[: within_bound(Facts(orders=self.orders), ops)]
        everything = Facts(orders=self.orders, lines=self.lines)
        keys = keys_to_lock(everything, self.records, moment, taken)
        # Only what is locked may be looked at.
        facts = Facts({key: self.balances[key] for key in keys if key in self.balances}, self.orders, self.lines)
        copy = WorkingCopy(0, facts, self.records, moment)
        results = copy.decide(taken)
        self._judge(facts, copy)
        self._write(copy.tables)
        self.changes += copy.changes
        return results + [Result(Outcome.SKIPPED)] * (len(ops) - len(taken))

    def decide(self, op: Operation) -> Result:
        [result] = self.call(op)
        return result

    def _judge(self, facts: Facts, copy: WorkingCopy) -> None:
        """The worker would have applied every change as it is, and written the same."""
        facts.requests = set(self.records.requests)
        again = Tables(0, facts)
        for change in copy.changes:
            for event in change.events:
                balance = again.balance(event.inventory_key)
                assert balance is not None
                assert again.fault(change, event, balance) == ""
                again.accept(change, event, balance, EPOCH, NO_ENTRY)
            if change.line_count:
                order = again.order((change.tenant, change.ref))
                assert order is not None
                assert order.open_lines == change.open_lines
        for rows in ("ledger_rows", "order_rows", "line_rows", "request_rows", "balance_rows"):
            assert getattr(again, rows) == getattr(copy.tables, rows)

    def _write(self, tables: Tables) -> None:
        for key, _, *columns in tables.balance_rows:
            quantities, total, rest = Quantities(*columns[:5]), columns[5], columns[6:9]
            assert min(quantities) >= 0
            assert total == quantities.total
            self.balances[key] = BalanceRow(*quantities, *rest)
        for tenant, ref, _, *columns in tables.order_rows:
            self.orders[tenant, ref] = OrderRow(*columns[:8])
        for tenant, ref, position, *columns in tables.line_rows:
            self.lines[tenant, ref, position] = LineRow(*columns[:6])
        self.ledger += tables.ledger_rows
        images = {(row[0], row[1]): row for row in self.ledger}
        for tenant, ref, key, kind, fingerprint, _, seq in tables.request_rows:
            row = images[key, seq]
            self.records.requests[tenant, ref] = Request(fingerprint, kind, [key, *row[15:20], seq, row[20]])

    def quantities(self, key: str) -> Quantities:
        return Quantities(*self.balances[key][:5])

    def states(self, tenant: str, ref: str) -> list[LineState]:
        return [LineState(line.state) for name, line in sorted(self.lines.items()) if name[:2] == (tenant, ref)]

    def image(self) -> list[Any]:
        """Everything that there is, to compare before and after."""
        return [dict(self.balances), dict(self.orders), dict(self.lines), dict(self.records.requests)]
