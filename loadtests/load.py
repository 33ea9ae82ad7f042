"""Behaviour under some hundred requests a second: Locust, budgets, and books that must balance.

`make load SCENARIO=order_service|flash_sale|retry_storm|operators|all`. Uses the stack that runs in `--run-dir`, or starts one
of its own. The exit code is 0 only if every bound of `budgets.toml` held. Capacity is measured elsewhere: `make bench`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
from rich.console import Console
from rich.table import Table

from client.failures import ClientError
from loadtests.books import Verdict
from loadtests.budgets import Result, Row, ScenarioBudget, judge, read_budgets
from loadtests.checking import Checker
from loadtests.plan import PLAN_VARIABLE, Plan
from loadtests.scenarios import SCENARIOS

HERE: Final = Path(__file__).parent
LOCUST_MARGIN_S: Final = 90
"""What Locust may take beyond the run: its start, and users who finish what they have begun."""
FINISH_S: Final = 30
ARRIVAL_S: Final = 4
"""In which all users arrive."""


class Stack(msgspec.Struct, frozen=True):
    """A running system, as its `stack.json` describes it."""

    gateway: str
    api_keys: dict[str, str]

    @classmethod
    def read(cls, run_dir: Path) -> "Stack | None":
        """None where none runs in this directory."""
        try:
            gateway = json.loads((run_dir / "stack.json").read_text())["gateway"]
            api_keys = json.loads((run_dir / "keys.json").read_text())
        except FileNotFoundError:
            return None
        try:
            httpx2.get(f"{gateway}/health/ready", timeout=10, trust_env=False).raise_for_status()
        except httpx2.HTTPError as error:
            raise SystemExit(f"the stack in {run_dir} is not ready: {error}") from None
        return cls(gateway, api_keys)


@contextlib.contextmanager
def stack_in(run_dir: Path) -> Generator[Stack]:
    """The running stack, or one that lives as long as the block. Raises SystemExit when it cannot be started."""
    running = Stack.read(run_dir)
    if running is not None:
        print(f"using the stack in {run_dir}: {running.gateway}", file=sys.stderr)
        yield running
        return
    command = [sys.executable, "-m", "stockgate"]
    with tempfile.TemporaryDirectory(prefix="stockgate-load-") as folder:
        place = ("--run-dir", folder)
        up = subprocess.run(
            [*command, "up", "--detach", *place, "--port", str(free_port())], stdout=sys.stderr, check=False
        )
        try:
            started = Stack.read(Path(folder))
            if up.returncode != 0 or started is None:
                raise SystemExit("the stack did not start; its messages stand above")
            yield started
        finally:
            subprocess.run([*command, "down", *place], stdout=sys.stderr, check=False)


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_scenario(stack: Stack, name: str, budget: ScenarioBudget, arguments: argparse.Namespace) -> dict[str, Any]:
    """Prepare, load, judge one scenario; answers what is printed. Raises SystemExit where it cannot be judged."""
    users = arguments.users or budget.users
    seconds = arguments.duration or budget.seconds
    prefix = f"load-{secrets.token_hex(3)}-"
    stock = {f"{prefix}{number}": budget.stock(users) for number in range(budget.inventory_keys)}
    with tempfile.TemporaryDirectory(prefix="stockgate-load-") as folder:
        plan = Plan(name, stack.api_keys, list(stock), f"{folder}/result.json", arguments.requests)
        asyncio.run(prepare(stack, stock))
        result = run_locust(stack, plan, Path(folder), users, seconds, web=arguments.web)
    verdict = asyncio.run(check(stack, result, stock))
    rows = judge(budget, result, verdict)
    print_scenario(name, users, result, verdict, rows)
    return {
        "ok": all(row.ok for row in rows),
        "users": users,
        "requests": sum(measured.requests for measured in result.by_name.values()),
        "per_s": round(result.per_s, 1),
        "orders": len(result.books.orders),
        "replays": result.books.replays,
        "given_up": result.books.given_up,
        "failed": [f"{row.name} {row.what}" for row in rows if not row.ok],
        "by_name": msgspec.to_builtins(result.by_name),
        "verdict": msgspec.to_builtins(verdict),
        "errors": result.errors,
    }


async def prepare(stack: Stack, stock: dict[str, int]) -> None:
    """Create the keys of a run."""
    async with Checker(stack.gateway, stack.api_keys) as checker:
        await checker.create(stock)


async def check(stack: Stack, result: Result, stock: dict[str, int]) -> Verdict:
    """Hold the books against the system."""
    async with Checker(stack.gateway, stack.api_keys) as checker:
        return await checker.judge(result.books, stock)


def run_locust(stack: Stack, plan: Plan, folder: Path, users: int, seconds: int, *, web: bool) -> Result:
    """Run Locust in a process of its own. Raises SystemExit when it leaves no result."""
    plan_path = folder / "plan.json"
    plan_path.touch(mode=0o600)  # it holds keys
    plan_path.write_bytes(msgspec.json.encode(plan))
    command = [
        *(sys.executable, "-m", "locust", "-f", str(HERE / "locustfile.py"), "--host", stack.gateway),
        *(
            "-u",
            str(users),
            "-r",
            str(max(1, users // ARRIVAL_S)),
            "-t",
            f"{seconds}s",
            "--stop-timeout",
            str(FINISH_S),
        ),
        *("--loglevel", "WARNING", "--exit-code-on-error", "0"),
    ]
    if web:
        port = free_port()
        command += ["--web-host", "127.0.0.1", "--web-port", str(port), "--autostart"]
        print(f"{plan.scenario}: Locust's page is http://127.0.0.1:{port} (Ctrl-C ends and judges)", file=sys.stderr)
    else:
        command += ["--headless", "--only-summary"]
    with (folder / "locust.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, PLAN_VARIABLE: str(plan_path)},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        exit_code = wait(process, None if web else seconds + FINISH_S + LOCUST_MARGIN_S)
    results = Path(plan.results)
    if exit_code != 0 or not results.exists():
        raise SystemExit(f"Locust ended with {exit_code}:\n{(folder / 'locust.log').read_text()[-4_000:]}")
    return msgspec.json.decode(results.read_bytes(), type=Result)


def wait(process: subprocess.Popen[bytes], limit_s: float | None) -> int:
    """The exit code. Ctrl-C is handed on once, wherever it came from: Locust then ends in order and leaves its result.

    It is handed on as SIGTERM, which Locust takes up between its greenlets. A KeyboardInterrupt would come up in whichever of
    them runs just then, and some keep it for themselves.
    """

    def hand_on(_number: int, _frame: object) -> None:
        process.terminate()

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return process.wait(limit_s)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
            process.wait()


def print_scenario(name: str, users: int, result: Result, verdict: Verdict, rows: list[Row]) -> None:
    """The table for people: every bound, what was measured, pass or fail."""
    console = Console(stderr=True)
    requests = sum(measured.requests for measured in result.by_name.values())
    title = f"{name}: {users} users, {requests:,} requests, {result.per_s:,.0f}/s, {len(result.books.orders):,} orders"
    table = Table("", "bound", "measured", "budget", "", title=title, title_justify="left")
    for row in rows:
        number = "{:,.4g}" if "ratio" in row.what else "{:,.0f}"
        mark = "[green]pass[/]" if row.ok else "[red]FAIL[/]"
        table.add_row(row.name, row.what, number.format(row.measured), number.format(row.budget), mark)
    console.print(table)
    for text in (*verdict.findings, *(f"{count} x {error}" for error, count in result.errors.items())):
        console.print(f"  {text}", markup=False)


def main() -> int:
    """Parse, run the scenarios one after the other, print; the exit code says whether every budget held."""
    parser = argparse.ArgumentParser(
        prog="loadtests.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", choices=(*SCENARIOS, "all"), nargs="?", default="all")
    parser.add_argument("--run-dir", type=Path, default=Path(".run"), help="where a stack may be running")
    parser.add_argument("--users", type=int, help="instead of the budget's number")
    parser.add_argument("--duration", type=int, help="seconds, instead of the budget's")
    parser.add_argument("--requests", type=int, help="end after so many, if that is sooner")
    parser.add_argument("--budgets", type=Path, default=HERE / "budgets.toml")
    parser.add_argument("--web", action="store_true", help="show Locust's page while it runs; Ctrl-C ends and judges")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    arguments = parser.parse_args()
    try:
        budgets = read_budgets(arguments.budgets)
    except (OSError, msgspec.DecodeError) as error:
        parser.error(f"--budgets: {error}")
    names = SCENARIOS if arguments.scenario == "all" else (arguments.scenario,)
    if missing := [name for name in names if name not in budgets]:
        parser.error(f"--budgets: {arguments.budgets} has no budget for {', '.join(missing)}")
    try:
        with stack_in(arguments.run_dir) as stack:
            results = {name: run_scenario(stack, name, budgets[name], arguments) for name in names}
    except (ClientError, subprocess.TimeoutExpired) as error:
        raise SystemExit(f"the load could not be judged: {error}") from error
    ok = all(result["ok"] for result in results.values())
    for name, result in results.items():
        print(f"{name}: {'pass' if result['ok'] else 'FAIL: ' + ', '.join(result['failed'])}", file=sys.stderr)
    if arguments.json:
        print(json.dumps({"ok": ok, "scenarios": results}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
