"""The command line. Roles are imported when they are started, so that each can run where the others cannot."""

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from pydantic import ValidationError
from rich.console import Console

from stockgate.processes import StackError
from stockgate.stack import Stack, StackOptions, down, up_detached

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Stockgate: an async inventory gateway. Redis decides, RabbitMQ carries, MySQL remembers.",
)

RunDir = Annotated[Path, typer.Option("--run-dir", help="Where the development stack keeps its files.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on the last line, for programs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")]
RUN_DIR = Path(".run")


class Ack(StrEnum):
    """What a 2xx waits for."""

    broker = "broker"
    redis = "redis"


class ServerWithAccounts(StrEnum):
    """Servers at which processes have accounts."""

    mysql = "mysql"
    redis = "redis"
    rabbitmq = "rabbitmq"


def load(module: str, function: str) -> Callable[..., Any]:
    """The function of a role's module; raises StackError where this installation lacks it."""
    try:
        return cast("Callable[..., Any]", getattr(importlib.import_module(module), function))
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            raise StackError(f"this version has no {module}") from error
        raise


def read_settings(run_dir: Path | None = None) -> object:
    """Settings from the environment; a development stack that runs in `run_dir` fills in what is not set."""
    if run_dir and (run_dir / "stack.json").exists():
        stack = json.loads((run_dir / "stack.json").read_text())
        stack = stack.get("operator", stack)
        for name, said in (("REDIS_URL", "redis"), ("MYSQL_URL", "mysql"), ("AMQP_URL", "amqp")):
            os.environ.setdefault(f"STOCKGATE_{name}", stack[said])
    try:
        return load("kernel.settings", "Settings")()
    except ValidationError as error:
        # Values are left out: some of them are secrets.
        wrong = [f"STOCKGATE_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors()]
        raise StackError("these settings are wrong:\n  " + "\n  ".join(wrong)) from None


def show(result: dict[str, Any], *, as_json: bool) -> int:
    """Print a result; the exit code says whether all is well."""
    if as_json:
        typer.echo(json.dumps(result))
    else:
        Console().print_json(data=result)
    return 0 if result.get("ok", True) else 1


@app.command()
def up(
    run_dir: RunDir = RUN_DIR,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the stack is ready.")] = False,
    port: Annotated[
        int | None, typer.Option(help="Port of the gateways; 8080, or a free one if that is taken.")
    ] = None,
    gateways: Annotated[int, typer.Option(min=1, max=16, help="Gateway processes that share the port.")] = 2,
    ack: Annotated[Ack, typer.Option(help="What a 2xx waits for.")] = Ack.broker,
    operators_port: Annotated[
        int | None, typer.Option(help="Answer /ops and /metrics on this port alone; 0 = a free one.")
    ] = None,
) -> int:
    """Start the development stack: private Redis, MariaDB and RabbitMQ, migrations, all roles. Ctrl-C stops it."""
    options = StackOptions(run_dir=run_dir, port=port, gateways=gateways, ack=ack.value, operators_port=operators_port)

    async def live() -> int:
        return await up_detached(options) if detach else await Stack(options).run()

    return asyncio.run(live())


@app.command(name="down")
def down_command(run_dir: RunDir = RUN_DIR) -> int:
    """Stop the development stack; its data is kept."""
    return asyncio.run(down(run_dir))


@app.command()
def demo(
    run_dir: RunDir = RUN_DIR,
    orders: Annotated[Path | None, typer.Option(help="Replay the order lines of a CSV file instead.")] = None,
    count: Annotated[int, typer.Option(min=1, help="How many orders to make up.")] = 20_000,
    seed: Annotated[int, typer.Option(help="The same number makes up the same orders.")] = 20_260_101,
    as_json: AsJson = False,
) -> int:
    """Replay a stream of orders against the running stack, kill a gateway on the way, and judge the outcome."""
    return load("stockgate.demo", "run_demo")(
        run_dir=run_dir, orders_file=orders, json_output=as_json, orders=count, seed=seed
    )


@app.command()
def migrate(
    grants: Annotated[bool, typer.Option("--grants", help="Then give each process's account its rights.")] = False,
) -> int:
    """Bring the database to this version's tables."""
    settings = read_settings()
    return load("sql.migrate", "run")(settings) or (load("sql.grant", "run")(settings) if grants else 0)


@app.command()
def grants(
    server: Annotated[ServerWithAccounts, typer.Argument(help="In whose words.")] = ServerWithAccounts.mysql,
) -> int:
    """Print what the accounts of the processes must be allowed at a server."""
    return load("stockgate.grants_command", "run")(server.value)


@app.command()
def gateway(
    fd: Annotated[int | None, typer.Option(help="Accept on this inherited listening socket.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on.")] = 8080,
    operators_fd: Annotated[
        int | None, typer.Option(help="Answer operators only on this inherited listening socket.")
    ] = None,
) -> int:
    """Run one HTTP gateway."""
    return load("gateway.main", "run")(read_settings(), fd=fd, host=host, port=port, operators_fd=operators_fd)


@app.command(name="persist-worker")
def persist_worker() -> int:
    """Run the process that makes events rows in MySQL."""
    return load("persist_worker.main", "run")(read_settings())


@app.command()
def reconciler() -> int:
    """Run the process that compares Redis with MySQL and moves Redis toward MySQL."""
    return load("reconciler.main", "run")(read_settings())


@app.command()
def leader() -> int:
    """Run a leader alone, without a gateway."""
    return load("inventory.leader_main", "run")(read_settings())


@app.command()
def reconcile(
    key: Annotated[list[str] | None, typer.Option(help="Only this inventory key; may be repeated.")] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit table. A dry run needs none.")] = "",
    dry_run: DryRun = False,
    run_dir: RunDir = RUN_DIR,
    as_json: AsJson = False,
) -> int:
    """Compare Redis with MySQL once and correct what has drifted."""
    run = load("reconciler.commands", "reconcile")
    return show(run(read_settings(run_dir), keys=key or [], dry_run=dry_run, reason=reason), as_json=as_json)


@app.command()
def repair(
    kind: Annotated[str, typer.Argument(help="correct, rebuild_shard, replay_held or reject_held.")],
    target: Annotated[str, typer.Argument(help="The inventory key or shard.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the audit table.")],
    dry_run: DryRun = False,
    run_dir: RunDir = RUN_DIR,
    as_json: AsJson = False,
) -> int:
    """Carry out one repair."""
    run = load("reconciler.commands", "repair")
    return show(run(read_settings(run_dir), kind=kind, target=target, reason=reason, dry_run=dry_run), as_json=as_json)


@app.command()
def mode(
    to_mode: Annotated[str | None, typer.Argument(help="hot (Redis decides) or db (MySQL decides).")] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the audit table.")] = "",
    abort: Annotated[bool, typer.Option("--abort", help="Give up the switch that runs.")] = False,
    wait: Annotated[float, typer.Option(min=0, max=3_600, help="Seconds to wait for its end; 0 = none.")] = 60.0,
    dry_run: DryRun = False,
    run_dir: RunDir = RUN_DIR,
    as_json: AsJson = False,
) -> int:
    """Say who decides, Redis or MySQL, or let the other one decide from now on."""
    run = load("stockgate.mode_command", "run")
    settings = read_settings(run_dir)
    return run(
        settings,
        run_dir=run_dir,
        to_mode=to_mode,
        reason=reason,
        abort=abort,
        dry_run=dry_run,
        wait_s=wait,
        as_json=as_json,
    )


@app.command()
def explain(
    key: Annotated[str | None, typer.Argument(help="The inventory key.")] = None,
    order: Annotated[str | None, typer.Option(help="Explain this order instead.")] = None,
    tenant: Annotated[str, typer.Option(help="Whose order it is.")] = "demo",
    limit: Annotated[int, typer.Option(min=1, max=500, help="Changes of the timeline at most.")] = 50,
    page: Annotated[str, typer.Option(help="The cursor that the page before printed.")] = "",
    run_dir: RunDir = RUN_DIR,
    as_json: AsJson = False,
) -> int:
    """Say why a key's number is what it is, or why an order stands as it does, and what to do about it."""
    run = load("stockgate.explain_command", "run")
    return run(read_settings(run_dir), key=key, order=order, tenant=tenant, limit=limit, page=page, as_json=as_json)


@app.command()
def actions(
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 50,
    before: Annotated[str, typer.Option(help="The cursor that the page before printed.")] = "",
    run_dir: RunDir = RUN_DIR,
    as_json: AsJson = False,
) -> int:
    """List what operators did, why, and what came of it: the audit table and the changes of stock in the ledger."""
    run = load("stockgate.actions_command", "run")
    return run(read_settings(run_dir), limit=limit, before=before, as_json=as_json)


@app.command()
def doctor(run_dir: RunDir = RUN_DIR, as_json: AsJson = False) -> int:
    """Check the settings of every server against what the protocol rests on, and say how to mend each."""
    return load("stockgate.doctor_command", "run")(read_settings(run_dir), run_dir=run_dir, as_json=as_json)


@app.command()
def audit(run_dir: RunDir = RUN_DIR, as_json: AsJson = False) -> int:
    """Check the invariants over everything in both stores."""
    return load("stockgate.audit_command", "run")(read_settings(run_dir), run_dir=run_dir, as_json=as_json)


@app.command()
def status(run_dir: RunDir = RUN_DIR, as_json: AsJson = False) -> int:
    """Say how everything stands: who decides, how far each store is, what waits for an operator."""
    return load("stockgate.status_command", "run")(read_settings(run_dir), run_dir=run_dir, as_json=as_json)


def main() -> None:
    """Entry point: the commands' return value is the exit code; foreseen failures are told in one piece."""
    try:
        code = app(standalone_mode=False)
    except StackError as error:
        typer.echo(f"stockgate: {error}", err=True)
        code = 1
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        # typer's own errors know how to present themselves (usage, bad values, --help's abort).
        present = getattr(error, "show", None)
        if present is None:
            raise
        present()
        code = getattr(error, "exit_code", 2)
    sys.exit(code if isinstance(code, int) else 0)
