"""What is measured: a development stack of its own, started and stopped by the `stockgate` command, and the baselines."""

import asyncio
import configparser
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2

from client.answers import Done
from client.failures import ClientError
from client.stockgate import StockgateClient
from loadtests.bench_wrk import Load, LoadFailedError, Round, run_wrk

Ack = Literal["broker", "redis"]
STOCK = 1_000_000_000
"""Units of each key: more than any run can take."""
START_LIMIT_S = 300.0
STOP_LIMIT_S = 120.0
AUDIT_LIMIT_S = 180.0
DRAIN_LIMIT_S = 60.0
SWITCH_LIMIT_S = 60.0
HOLD_TTL_S = 7_200
"""No hold may expire while what was answered is compared with what is held."""
_CREATE_AT_ONCE = 32
_QUERY_KEYS_MAX = 500


class BenchError(Exception):
    """The bench could not be carried out, or what it measured was not what it says; the message is for a person."""


@dataclass
class Catalogue:
    """Keys made for one part of the bench, and what was answered about them."""

    prefix: str
    keys: int
    reserved: int = 0
    """Reserves of one unit that were answered 201."""
    cut_off_max: int = 0
    """Reserves that may have been accepted without anybody hearing it: wrk ends with requests under way."""


class System:
    """A running stack, seen from outside: its address, keys, servers and processes."""

    def __init__(self, run_dir: Path, ack: Ack) -> None:
        self.run_dir = run_dir
        self.ack: Ack = ack
        self._stack = json.loads((run_dir / "stack.json").read_text())
        self._api_keys: dict[str, str] = json.loads((run_dir / "keys.json").read_text())
        self.gateway: str = self._stack["gateway"]
        self._catalogues = 0
        self._rounds = 0

    def processes(self) -> dict[str, int]:
        """Pids by the stack's names; raises BenchError if one of them has died since, for then nothing is comparable."""
        now = {
            each["name"]: int(each["pid"])
            for each in json.loads((self.run_dir / "stack.json").read_text())["processes"]
        }
        before = {each["name"]: int(each["pid"]) for each in self._stack["processes"]}
        if now != before:
            raise BenchError(f"processes died while they were measured: {before} became {now}")
        return now

    def client(self, scope: Literal["orders", "inventory", "ops"]) -> StockgateClient:
        return StockgateClient(self.gateway, self._api_keys[scope])

    async def catalogue(self, keys: int) -> Catalogue:
        """Make `keys` new keys with plenty of stock; raises BenchError on a refusal."""
        self._catalogues += 1
        made = Catalogue(f"bench-{self._catalogues}-", keys)
        async with self.client("inventory") as client:

            async def create(name: str) -> None:
                answer = await client.create_inventory(
                    name, item_id=name, init_quantity=STOCK, request_no=f"create-{name}"
                )
                if not isinstance(answer, Done):
                    raise BenchError(f"{name} was refused: {answer.code}: {answer.problem.detail}")

            for start in range(0, keys, _CREATE_AT_ONCE):
                numbers = range(start, min(start + _CREATE_AT_ONCE, keys))
                await asyncio.gather(*(create(f"{made.prefix}{number}") for number in numbers))
        return made

    async def load(self, catalogue: Catalogue, load: Load, **environment: str) -> Round:
        """A round of wrk on the gateway, kept in the catalogue's books; raises LoadFailedError."""
        self._rounds += 1
        path = "/v1/operations" if load.script == "operations" else "/v1/reservations"
        done = await run_wrk(
            f"{self.gateway}{path}",
            load,
            {
                "AUTH": self._api_keys["orders"],
                "KEY_PREFIX": catalogue.prefix,
                "RUN": f"{catalogue.prefix}{self._rounds}",
                **environment,
            },
        )
        catalogue.reserved += done.reserved
        in_a_request = int(environment.get("OPERATIONS", "100")) if load.script == "operations" else 1
        catalogue.cut_off_max += load.connections * in_a_request
        return done

    async def switch(self, to_mode: Literal["hot", "db"]) -> float:
        """Let MySQL or Redis decide; seconds until that is so. Raises BenchError after `SWITCH_LIMIT_S`."""
        began = time.monotonic()
        async with self.client("ops") as client:
            await client.switch_mode(to_mode, reason="a benchmark")
            while time.monotonic() - began < SWITCH_LIMIT_S:
                mode = await client.mode()
                if mode.mode == to_mode and mode.switch is None:
                    return time.monotonic() - began
                await asyncio.sleep(0.02)
        raise BenchError(f"not {to_mode} after {SWITCH_LIMIT_S:.0f} s")

    async def backlog_entries(self) -> int | None:
        """Entries of the log that MySQL does not have yet; None where a store could not be asked."""
        async with self.client("ops") as client:
            (shard,) = (await client.status()).shards
        if shard.mode == "db":
            return 0
        if shard.log_head_m is None or shard.applied_m is None:
            return None
        return shard.log_head_m - shard.applied_m

    async def until_drained(self, limit_s: float = DRAIN_LIMIT_S) -> float:
        """Seconds until MySQL had all that Redis had decided; raises BenchError after `limit_s`."""
        began = time.monotonic()
        left: int | None = None
        while (waited := time.monotonic() - began) < limit_s:
            with contextlib.suppress(ClientError):
                left = await self.backlog_entries()
            if left == 0:
                return waited
            await asyncio.sleep(0.05)
        raise BenchError(f"the backlog is not empty after {limit_s:.0f} s: {left} entries are left")

    async def check_books(self, catalogue: Catalogue) -> dict[str, Any]:
        """Compare what was answered with what was taken, and both stores with each other; raises BenchError.

        Every reserve of one unit that was answered 201 took one, and no more was taken than was asked for.
        """
        await self.until_drained()
        names = [f"{catalogue.prefix}{number}" for number in range(catalogue.keys)]
        taken = 0
        async with self.client("orders") as client:
            for start in range(0, len(names), _QUERY_KEYS_MAX):
                for answer in await client.query_inventory(names[start : start + _QUERY_KEYS_MAX]):
                    if not isinstance(answer, Done):
                        raise BenchError(f"a key of the bench cannot be read: {answer.code}")
                    key = answer.value
                    taken += key.reserved + key.sold
                    if key.total != STOCK or key.available + key.reserved + key.sold != STOCK:
                        raise BenchError(f"the quantities of {key.inventory_key} do not sum up: {key}")
        if not catalogue.reserved <= taken <= catalogue.reserved + catalogue.cut_off_max:
            raise BenchError(
                f"{catalogue.reserved} reserves were answered 201, {taken} units were taken, and at most "
                f"{catalogue.cut_off_max} more than answered can have been"
            )
        await self._audit()
        return {"answered": catalogue.reserved, "taken": taken, "audit": "ok"}

    async def _audit(self) -> None:
        """Every invariant, by the operators' command, which may take its time; raises BenchError with what is violated."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stockgate", "audit", "--run-dir", str(self.run_dir), "--json"),
            stdout=asyncio.subprocess.PIPE,
            # Looking at all rows of a long run takes longer than what a request waits for.
            env={**os.environ, "STOCKGATE_MYSQL_TIMEOUT_MS": "60000", "STOCKGATE_REDIS_TIMEOUT_MS": "60000"},
        )
        out = await until_ended(process, AUDIT_LIMIT_S)
        lines = out.decode().splitlines()
        report: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        if process.returncode != 0 or not report.get("ok"):
            broken = [
                f"{check['name']}: {check['violations'][:3]}" for check in report.get("checks", ()) if not check["ok"]
            ]
            why = report.get("error") or broken or "it said nothing, or stands above"
            raise BenchError(f"the audit ended with {process.returncode}: {why}")

    def redis_owner(self) -> tuple[str, str, str, str]:
        """Host, port, and the name and password of the account that may do all."""
        passwords: dict[str, str] = json.loads((self.run_dir / "passwords.json").read_text())
        redis = urlsplit(self._stack["redis"])
        return str(redis.hostname), str(redis.port), "admin", passwords["redis"]

    def baseline_environment(self) -> dict[str, str]:
        """The same servers for the baselines, by their owners' accounts and in databases of their own."""
        passwords: dict[str, str] = json.loads((self.run_dir / "passwords.json").read_text())
        admin = configparser.ConfigParser(interpolation=None)
        admin.read_string((self.run_dir / "mariadb" / "client.cnf").read_text())
        account = admin["client"]
        amqp = urlsplit(self._stack["amqp"])
        host, port, user, password = self.redis_owner()
        return {
            "REDIS_URL": f"redis://{user}:{password}@{host}:{port}/9",
            "AMQP_URL": f"amqp://stockgate:{passwords['rabbitmq']}@{amqp.hostname}:{amqp.port}{amqp.path}",
            "MYSQL_HOST": account["host"],
            "MYSQL_PORT": account["port"],
            "MYSQL_USER": account["user"],
            "MYSQL_PASSWORD": account["password"],
            "MYSQL_DATABASE": "baseline",
        }


async def until_ended(process: asyncio.subprocess.Process, limit_s: float) -> bytes:
    """What it wrote into a pipe, if it has one; one that does not end in time is ended. Raises BenchError then."""
    try:
        async with asyncio.timeout(limit_s):
            out, _ = await process.communicate()
            return out or b""
    except TimeoutError:
        raise BenchError(f"a command did not end within {limit_s:.0f} s") from None
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _run(command: Sequence[str], limit_s: float, environment: Mapping[str, str]) -> int:
    process = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr, env=environment)
    await until_ended(process, limit_s)
    return process.returncode or 0


@contextlib.asynccontextmanager
async def running_stack(run_dir: Path, ack: Ack) -> AsyncGenerator[System]:
    """A stack with one gateway, stopped at the end. Raises BenchError where it does not start."""
    command = [sys.executable, "-m", "stockgate"]
    options = ["--run-dir", str(run_dir), "--port", str(free_port()), "--gateways", "1", "--ack", ack]
    environment = {**os.environ, "STOCKGATE_HOLD_TTL_DEFAULT_S": str(HOLD_TTL_S)}
    try:
        if await _run([*command, "up", "--detach", *options], START_LIMIT_S, environment) != 0:
            raise BenchError("the stack did not start; its messages stand above")
        yield System(run_dir, ack)
    finally:
        await _run([*command, "down", "--run-dir", str(run_dir)], STOP_LIMIT_S, environment)


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Baseline:
    """A running baseline server."""

    name: str
    url: str
    pid: int
    rounds: int = 0

    async def load(self, load: Load) -> Round:
        """A round of wrk on it; raises LoadFailedError."""
        self.rounds += 1
        try:
            return await run_wrk(
                f"{self.url}/v1/reservations", load, {"KEY_PREFIX": "k", "RUN": f"{self.name}-{self.rounds}"}
            )
        except LoadFailedError as error:
            raise LoadFailedError(f"baseline {self.name}: {error}") from None


@contextlib.asynccontextmanager
async def baseline(name: str, environment: Mapping[str, str]) -> AsyncGenerator[Baseline]:
    """A baseline of `loadtests.baselines` under uvicorn; raises BenchError where it does not start."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", f"loadtests.baselines.{name}:app", "--port", str(port)),
        *("--no-access-log", "--log-level", "warning", "--loop", "uvloop", "--http", "httptools"),
        stdout=sys.stderr,
        env={**os.environ, **environment},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(30), httpx2.AsyncClient(trust_env=False) as client:
            while process.returncode is None:
                with contextlib.suppress(httpx2.TransportError):
                    await client.get(url)
                    break
                await asyncio.sleep(0.05)
        if process.returncode is not None:
            raise BenchError(f"baseline {name} ended with {process.returncode}; its messages stand above")
        yield Baseline(name, url, process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
