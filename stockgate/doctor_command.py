"""`stockgate doctor`: whether every server is set up as the protocol needs it, and how to mend what is not."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from inventory.doctor_mysql import check_mysql
from inventory.doctor_rabbitmq import check_rabbitmq
from inventory.doctor_redis import check_redis
from kernel.doctor import Finding, Status, unreachable
from kernel.errors import StockgateError
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from stockgate.addresses import address, require_addresses, variable

NAME: Final = "doctor"
LIMIT_S: Final = 60.0
"""All questions to one server together; each has its own limit."""
PLAIN_COLUMNS: Final = 160

Check = Callable[[], Awaitable[list[Finding]]]


def run(settings: Settings, *, run_dir: Path, as_json: bool) -> int:
    """Check and print; the exit code is 0 only if all is well. Raises StackError where no server is named."""
    require_addresses(settings, run_dir)
    findings = asyncio.run(examine(settings))
    servers = {store: address(settings, store) for store in findings}
    result = summary(servers, [finding for found in findings.values() for finding in found])
    if as_json:
        print(json.dumps(result))  # noqa: T201 -- the command's answer
    else:
        console = Console()
        if not console.is_terminal:
            console = Console(width=PLAIN_COLUMNS)
        console.print(on_paper(servers, findings))
    return 0 if result["ok"] else 1


async def examine(settings: Settings) -> dict[str, list[Finding]]:
    """What each server's check found, by store. One that is away keeps nobody from asking the others."""
    redis = RedisDoor.open(settings, name=NAME)
    database = await Database.open(settings, name=NAME, pool_max=1)
    checks: dict[str, Check] = {
        "redis": lambda: check_redis(redis, settings),
        "rabbitmq": lambda: check_rabbitmq(settings, name=NAME),
        "mysql": lambda: check_mysql(database),
    }
    try:
        found = await asyncio.gather(*(_examine_one(settings, store, check) for store, check in checks.items()))
    finally:
        await redis.close()
        await database.close()
    return dict(zip(checks, found, strict=True))


async def _examine_one(settings: Settings, store: str, check: Check) -> list[Finding]:
    try:
        async with asyncio.timeout(LIMIT_S):
            return await check()
    except (StockgateError, TimeoutError) as failure:
        mend = f"see that it runs at {address(settings, store)}, and that {variable(store)} has the right login"
        return [unreachable(store, str(failure) or f"no answer within {LIMIT_S:.0f} s", mend=mend)]


def summary(servers: dict[str, str], findings: list[Finding]) -> dict[str, Any]:
    """The result for programs. `ok`: every check is; `dangerous`: how many keep a process from being ready."""
    wrong = [finding for finding in findings if finding.status is Status.WRONG]
    return {
        "ok": all(finding.status is Status.OK for finding in findings),
        "dangerous": sum(finding.dangerous for finding in wrong),
        "warnings": sum(not finding.dangerous for finding in wrong),
        "unknown": sum(finding.status is Status.UNKNOWN for finding in findings),
        "servers": servers,
        "checks": [msgspec.to_builtins(finding) for finding in findings],
    }


def on_paper(servers: dict[str, str], findings: dict[str, list[Finding]]) -> Group:
    """The result for people: a table of all, then each trouble with its reason and its remedy."""
    table = Table("", "check", "found", "must be", expand=False)
    for store, found in findings.items():
        table.add_section()
        table.add_row("", Text(store, "bold"), Text(servers[store], "bold"), "")
        for finding in found:
            table.add_row(_mark(finding), Text(finding.name), Text(finding.found), Text(finding.wanted))
    troubles = [finding for found in findings.values() for finding in found if finding.status is not Status.OK]
    return Group(table, *(_trouble(finding) for finding in troubles), _verdict(troubles))


def _mark(finding: Finding) -> Text:
    if finding.status is Status.OK:
        return Text("ok", "green")
    if finding.status is Status.UNKNOWN:
        return Text("unknown", "yellow")
    return Text("DANGEROUS", "bold red") if finding.dangerous else Text("warning", "yellow")


def _trouble(finding: Finding) -> Text:
    lines = [
        Text.assemble(
            "\n", _mark(finding), " ", (finding.name, "bold"), f": {finding.found}, must be {finding.wanted}"
        ),
        Text(f"  why:  {finding.why}"),
        Text(f"  mend: {finding.mend}"),
    ]
    return Text("\n").join(lines)


def _verdict(troubles: list[Finding]) -> Text:
    if not troubles:
        return Text("all is well", "green")
    dangerous = sum(finding.dangerous for finding in troubles)
    if dangerous:
        return Text(f"\n{dangerous} dangerous: no process becomes ready before they are mended", "bold red")
    return Text(f"\nnothing dangerous; {len(troubles)} to look at", "yellow")
