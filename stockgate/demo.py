"""`stockgate demo`: an order service of its own that plays a stream of orders, kills a gateway, and judges the outcome.

Whether something was lost or oversold is computed from what this process asked and was told; the server's audit and its
own numbers are only compared with that.
"""

import asyncio
import hashlib
import json
import os
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import SecretStr
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import sql
from client.answers import Done, Refused
from client.failures import ClientError
from client.replies import Order
from client.retries import Retries
from client.stockgate import StockgateClient
from kernel.mysql_door import Database
from kernel.settings import Settings
from stockgate.demo_history import Verdict, judge
from stockgate.demo_player import Player
from stockgate.demo_stream import OrderPlan, OrdersFileError, Stream, read_orders_file, zipf_stream
from stockgate.processes import Identity, StackError

ORDERS: Final = 20_000
KEYS: Final = 1_000
SEED: Final = 20_260_101
CONCURRENCY: Final = 48
READ_CONCURRENCY: Final = 32
SETTLE_LIMIT_S: Final = 120.0
RESTART_LIMIT_S: Final = 60.0
QUERY_KEYS: Final = 500


@dataclass(slots=True)
class Outcome:
    """Everything the demo prints. Counts are orders unless named otherwise; latencies are of whole reserve calls."""

    orders: int
    accepted: int
    refused: int
    confirmed: int
    released: int
    expired: int
    returned: int
    unanswered: int
    persisted_events: int
    oversold: int
    lost: int
    drift: int
    audit: str
    reserve_per_s: float
    calls_per_s: float
    p50_ms: float
    p99_ms: float
    gateway_killed: bool
    gateway_restarted: bool
    skipped_lines: dict[str, int] = field(default_factory=dict[str, int])
    findings: list[str] = field(default_factory=list[str])
    """What is wrong, in sentences; empty if all is well."""

    @property
    def ok(self) -> bool:
        """Whether every invariant holds and the demo did what it set out to do."""
        restarted = self.gateway_restarted or not self.gateway_killed
        return not self.findings and self.audit == "ok" and restarted and self.accepted > 0


def run_demo(
    *, run_dir: Path, orders_file: Path | None, json_output: bool, orders: int = ORDERS, seed: int = SEED
) -> int:
    """Play, judge, print; exit code 0 only if the invariants hold. Raises StackError where no stack runs."""
    console = Console(stderr=json_output)
    run = secrets.token_hex(3)
    try:
        stream = (
            read_orders_file(orders_file, run) if orders_file else zipf_stream(run, orders=orders, keys=KEYS, seed=seed)
        )
    except (OrdersFileError, OSError, UnicodeDecodeError) as error:
        raise StackError(f"--orders: {error}") from error
    demo = Demo(run_dir, run, stream, seed, console)
    outcome = asyncio.run(demo.play())
    _print(console, outcome)
    if json_output:
        print(json.dumps({"ok": outcome.ok, **asdict(outcome)}))
    return 0 if outcome.ok else 1


class Demo:
    """One run against the stack that `run_dir` describes."""

    def __init__(self, run_dir: Path, run: str, stream: Stream, seed: int, console: Console) -> None:
        self.run_dir = run_dir
        self.run = run
        self.stream = stream
        self.console = console
        description = self._description()
        keys_path = Path(description["keys"])
        keys = json.loads((keys_path if keys_path.is_absolute() else run_dir.parent / keys_path).read_text())
        url, retries = description["gateway"], Retries(deadline_s=60.0)
        self.orders = StockgateClient(url, keys["orders"], retries=retries)
        self.inventory = StockgateClient(url, keys["inventory"], retries=retries)
        self.ops = StockgateClient(description["operators"], keys["ops"], retries=retries)
        self.mysql_url: str = description["operator"]["mysql"]
        self.player = Player([self.orders], seed=seed)
        self.killed: Identity | None = None
        self.killed_name = ""

    def _description(self) -> dict[str, Any]:
        try:
            return json.loads((self.run_dir / "stack.json").read_text())
        except FileNotFoundError:
            raise StackError(f"no stack runs in {self.run_dir}: start it with `stockgate up --detach`") from None

    async def play(self) -> Outcome:
        """The whole demo; closes its connections whatever happens."""
        try:
            with self._progress() as progress:
                await self._load_catalogue(progress)
                seconds = await self._play_orders(progress)
                final = await self._settle(progress)
                balances = await self._read_balances(progress)
            restarted = await self._restarted()
            return await self._judge(seconds, final, balances, restarted)
        finally:
            for client in (self.orders, self.inventory, self.ops):
                await client.aclose()

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self.console,
        )

    async def _load_catalogue(self, progress: Progress) -> None:
        """Create every key with its opening stock, then write off what the books wrote off."""
        bar = progress.add_task("loading the catalogue", total=len(self.stream.stock) + len(self.stream.write_offs))

        async def create(item: tuple[str, int]) -> None:
            key, quantity = item
            answer = await self.inventory.create_inventory(
                key,
                item_id=key[:64].replace(" ", "-"),
                init_quantity=quantity,
                request_no=f"{self.run}-create-{_short(key)}",
            )
            if isinstance(answer, Refused):
                raise StackError(f"{key} was refused: {answer.code}: {answer.problem.detail}")
            progress.advance(bar)

        await _each(list(self.stream.stock.items()), READ_CONCURRENCY, create)
        for write_off in self.stream.write_offs:
            answer = await self.inventory.adjust(
                write_off.key, -write_off.qty, request_no=write_off.request_no, reason="written off in the shop's books"
            )
            if isinstance(answer, Refused):
                raise StackError(f"{write_off.key} could not be written off: {answer.code}")
            self.stream.stock[write_off.key] -= write_off.qty
            progress.advance(bar)

    async def _play_orders(self, progress: Progress) -> float:
        """Play all orders, at most CONCURRENCY at a time; half-way a gateway dies. Answers the seconds it took."""
        bar = progress.add_task("playing orders", total=len(self.stream.orders))
        half = len(self.stream.orders) // 2
        started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:

            async def play(numbered: tuple[int, OrderPlan]) -> None:
                number, plan = numbered
                if number == half:
                    self._kill_gateway(progress)
                await self.player.play(plan, tasks)
                progress.advance(bar)

            await _each(list(enumerate(self.stream.orders)), CONCURRENCY, play)
            seconds = time.monotonic() - started
            if self.player.late:
                progress.update(bar, description=f"{len(self.player.late)} late payments")
        return seconds

    def _kill_gateway(self, progress: Progress) -> None:
        for process in self._description()["processes"]:
            if process["name"].startswith("gateway"):
                identity = Identity.of(process["pid"])
                if identity is not None:
                    os.kill(identity.pid, signal.SIGKILL)
                    self.killed, self.killed_name = identity, process["name"]
                    progress.console.print(f"killed {process['name']} (pid {identity.pid}) with SIGKILL")
                    return

    async def _restarted(self) -> bool:
        """Whether the stack has started the killed gateway again."""
        deadline = time.monotonic() + RESTART_LIMIT_S
        while self.killed is not None and time.monotonic() < deadline:
            for process in self._description()["processes"]:
                identity = Identity.of(process["pid"]) if process["name"] == self.killed_name else None
                if identity is not None and identity != self.killed:
                    return True
            await asyncio.sleep(0.2)
        return False

    async def _settle(self, progress: Progress) -> dict[str, Order | None]:
        """Read every order until no hold is open that is to expire, and MySQL has everything."""
        final: dict[str, Order | None] = {}
        bar = progress.add_task("waiting for the end", total=len(self.player.orders))
        waiting: list[str] = list(self.player.orders)
        deadline = time.monotonic() + SETTLE_LIMIT_S

        async def read(order_id: str) -> None:
            answer = await self.orders.order(order_id)
            final[order_id] = answer.value if isinstance(answer, Done) else None

        while waiting:
            await _each(waiting, READ_CONCURRENCY, read)
            waiting = [order_id for order_id in waiting if self._still_open(order_id, final[order_id])]
            progress.update(bar, completed=len(final) - len(waiting))
            if waiting and time.monotonic() > deadline:
                break
            await asyncio.sleep(0.5 if waiting else 0)
        await self._applied(deadline)
        return final

    def _still_open(self, order_id: str, order: Order | None) -> bool:
        """Whether a hold that nobody will settle has not expired yet."""
        history = self.player.orders[order_id]
        left = history.abandoned or history.unknown or history.unexecuted
        return (
            bool(left)
            and order is not None
            and any(line.status == "RESERVED" for line in order.lines)
            and _short_hold(order)
        )

    async def _applied(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            status = await self.ops.status()
            if all(shard.mode == "hot" and shard.persist_lag_entries == 0 for shard in status.shards):
                return
            await asyncio.sleep(0.2)

    async def _read_balances(self, progress: Progress) -> dict[str, dict[str, int]]:
        names = list(self.stream.stock)
        bar = progress.add_task("reading the stock", total=len(names))
        balances: dict[str, dict[str, int]] = {}
        for start in range(0, len(names), QUERY_KEYS):
            page = names[start : start + QUERY_KEYS]
            for key, answer in zip(page, await self.orders.query_inventory(page), strict=True):
                if isinstance(answer, Done):
                    value = answer.value
                    balances[key] = {
                        name: getattr(value, name) for name in ("available", "reserved", "sold", "consumed", "locked")
                    }
            progress.advance(bar, len(page))
        return balances

    async def _judge(
        self, seconds: float, final: dict[str, Order | None], balances: dict[str, dict[str, int]], restarted: bool
    ) -> Outcome:
        histories = self.player.orders
        lines = {
            order_id: None if order is None else {line.inventory_key: line.status for line in order.lines}
            for order_id, order in final.items()
        }
        verdict = judge(histories, lines, self.stream.stock, balances)
        drift, persisted = await self._compare_with_mysql(balances)
        try:
            report = await self.ops.audit(deadline_s=120)
            audit = (
                "ok" if report.ok else "violated: " + ", ".join(check.name for check in report.checks if not check.ok)
            )
        except ClientError as failure:
            audit = f"not answered: {failure}"
        return self._outcome(seconds, final, verdict, drift, persisted, audit, restarted)

    async def _compare_with_mysql(self, balances: dict[str, dict[str, int]]) -> tuple[list[str], int]:
        """Sentences about keys that differ between what the gateway says and MySQL; and the run's rows in the ledger."""
        pattern = f"demo-{self.run}-%"
        settings = Settings(mysql_url=SecretStr(self.mysql_url))
        database = await Database.open(settings, name="demo")
        try:
            rows = await database.fetch_all(sql.load("select_balances_by_prefix"), (pattern,))
            persisted = int((await database.fetch_all(sql.load("count_ledger_by_prefix"), (pattern,)))[0][0])
        finally:
            await database.close()
        in_mysql = {
            row[0]: dict(zip(("available", "reserved", "sold", "consumed", "locked"), row[1:], strict=True))
            for row in rows
        }
        drift = [
            f"{key}: the gateway says {balances.get(key)}, MySQL {in_mysql.get(key)}"
            for key in self.stream.stock
            if balances.get(key) != in_mysql.get(key)
        ]
        return drift, persisted

    def _outcome(
        self,
        seconds: float,
        final: dict[str, Order | None],
        verdict: Verdict,
        drift: list[str],
        persisted: int,
        audit: str,
        restarted: bool,
    ) -> Outcome:
        histories = list(self.player.orders.values())
        latencies = sorted(self.player.reserve_s)
        return Outcome(
            orders=len(histories),
            accepted=sum(order.reserved for order in histories),
            refused=sum(bool(order.refused) for order in histories),
            confirmed=sum(order.confirmed for order in histories),
            released=sum(order.released for order in histories),
            expired=sum(_expired(order) for order in final.values()),
            returned=sum(bool(order.returned) for order in histories),
            unanswered=sum(bool(order.unknown or order.unexecuted) for order in histories),
            persisted_events=persisted,
            oversold=len(verdict.oversold),
            lost=len(verdict.lost),
            drift=len(drift),
            audit=audit,
            reserve_per_s=round(len(latencies) / seconds, 1),
            calls_per_s=round(self.player.calls / seconds, 1),
            p50_ms=_percentile_ms(latencies, 0.50),
            p99_ms=_percentile_ms(latencies, 0.99),
            gateway_killed=self.killed is not None,
            gateway_restarted=restarted,
            skipped_lines=self.stream.skipped,
            findings=[*verdict.oversold, *verdict.lost, *verdict.wrong, *drift, *self.player.surprises],
        )


Item = TypeVar("Item")


async def _each(items: Sequence[Item], concurrency: int, work: Callable[[Item], Awaitable[None]]) -> None:
    """Do the work for each item in order, at most `concurrency` at a time; the first failure ends it all."""
    remaining = iter(items)

    async def take() -> None:
        for item in remaining:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(take())


def _short(key: str) -> str:
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()


def _short_hold(order: Order) -> bool:
    """Whether the hold ends within the time that the demo waits."""
    return order.expires_at is not None and (order.expires_at - order.server_time).total_seconds() < SETTLE_LIMIT_S


def _expired(order: Order | None) -> bool:
    return order is not None and any(line.status == "RELEASED" and line.reason == "expired" for line in order.lines)


def _percentile_ms(ordered: list[float], share: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 2) if ordered else 0.0


def _print(console: Console, outcome: Outcome) -> None:
    table = Table(title="stockgate demo", show_header=False)
    for name, value in asdict(outcome).items():
        if name == "findings":
            continue
        table.add_row(name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    console.print(table)
    for finding in outcome.findings[:20]:
        console.print(f"[red]✗[/red] {finding}", highlight=False)
    if len(outcome.findings) > 20:
        console.print(f"… and {len(outcome.findings) - 20} more")
    console.print(
        "[green]nothing lost, nothing oversold, both stores agree[/green]"
        if outcome.ok
        else "[red]the invariants do not hold[/red]: look at `.run/log/` and `stockgate audit`"
    )
