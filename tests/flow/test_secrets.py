"""Nothing that is secret is written where others read: a whole stack at its most talkative, with failures, searched."""

import asyncio
import json
import os
import secrets
import signal
import stat
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from stockgate.accounts import RoleName, with_login
from stockgate.processes import Child
from stockgate.servers import Servers
from stockgate.stack import ADDRESS_SETTINGS

LIMIT_S = 90.0
QUEUE_IS_SAFE_S = 6.0
OWNERS = {"redis", "mariadb", "rabbitmq", "redis-stockgate", "mariadb-operator", "rabbitmq-operator"}
"""Whose passwords `stack.json` hands out, to those who may read `passwords.json` beside it."""


class Talkative:
    """A real stack at log level debug."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.stack: dict[str, Any] = json.loads((run_dir / "stack.json").read_text())
        self.passwords: dict[str, str] = json.loads((run_dir / "passwords.json").read_text())
        self.keys: dict[str, str] = json.loads((run_dir / "keys.json").read_text())
        self.http = httpx2.AsyncClient(base_url=self.stack["gateway"], timeout=20, trust_env=False)
        self.ready_at = time.monotonic()
        self.heard: list[str] = []
        """Everything that was answered to anybody, and what commands printed."""

    @property
    def processes(self) -> list[dict[str, Any]]:
        return json.loads((self.run_dir / "stack.json").read_text())["processes"]

    async def call(self, method: str, path: str, key: str, body: Any = None) -> httpx2.Response:
        answer = await self.http.request(method, path, json=body, headers={"authorization": f"Bearer {key}"})
        self.heard.append(f"{answer.headers} {answer.text}")
        return answer

    async def until_ready(self) -> None:
        async with asyncio.timeout(LIMIT_S):
            while True:
                try:
                    answer = await self.http.get("/health/ready")
                    self.heard.append(answer.text)
                    if answer.status_code == 200:
                        return
                except httpx2.TransportError as error:
                    self.heard.append(repr(error))
                await asyncio.sleep(0.1)

    async def command(self, *arguments: str, **environment: str) -> int:
        """Run a command of ours; what it prints is heard."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stockgate", *arguments),
            env={**os.environ, **environment, "STOCKGATE_LOG_LEVEL": "debug"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(LIMIT_S):
            out, _ = await process.communicate()
        self.heard.append(out.decode())
        return process.returncode or 0


@pytest.fixture
async def talkative(tmp_path: Path) -> AsyncGenerator[Talkative]:
    run_dir = tmp_path / "run"
    stockgate = (sys.executable, "-m", "stockgate")
    environment = {**os.environ, "STOCKGATE_LOG_LEVEL": "debug"}
    up = await asyncio.create_subprocess_exec(
        *(*stockgate, "up", "--detach", "--gateways", "1", "--port", "0", "--run-dir", str(run_dir)), env=environment
    )
    try:
        assert await up.wait() == 0
        talkative = Talkative(run_dir)
        yield talkative
        await talkative.http.aclose()
    finally:
        down = await asyncio.create_subprocess_exec(*stockgate, "down", "--run-dir", str(run_dir))
        assert await down.wait() == 0


async def live(world: Talkative) -> None:
    """What callers and operators do on a day, right and wrong."""
    orders, inventory, ops = (world.keys[name] for name in ("orders", "inventory", "ops"))
    create = {"inventory_key": "k", "item_id": "i", "inventory_mode": "QTY", "init_quantity": 5, "request_no": "r"}
    assert (await world.call("POST", "/v1/inventory", inventory, create)).status_code == 201
    reserve = {"order_id": "o", "lines": [{"inventory_key": "k", "qty": 1}]}
    assert (await world.call("POST", "/v1/reservations", orders, reserve)).status_code == 201
    assert (await world.call("POST", "/v1/reservations/o/confirm", orders, {})).status_code == 200
    assert (await world.call("POST", "/v1/reservations", inventory, reserve)).status_code == 403
    assert (await world.call("POST", "/v1/reservations", "sesame", reserve)).status_code == 401
    assert (await world.call("POST", f"/v1/reservations/{orders[:60]}/confirm", ops, {})).status_code in {400, 403, 404}
    assert (await world.call("POST", "/v1/reservations", orders, {"order_id": 1})).status_code in {400, 422}
    assert (await world.call("GET", "/ops/status", ops)).status_code == 200
    assert (await world.call("GET", "/ops/audit", ops)).status_code == 200


async def lose_every_server_once(world: Talkative) -> None:
    """Refused connections and broken ones, in every process."""
    for name in ("redis", "mariadb", "rabbitmq"):
        if name == "rabbitmq":
            # Killed within 5 s of its declaration, a quorum queue of this broker has lost the name of its only member for ever.
            await asyncio.sleep(max(0.0, world.ready_at + QUEUE_IS_SAFE_S - time.monotonic()))
        (pid,) = (process["pid"] for process in world.processes if process["name"] == name)
        os.kill(pid, signal.SIGKILL)
        lost = {"order_id": f"lost-{name}", "lines": [{"inventory_key": "k", "qty": 1}]}
        await world.call("POST", "/v1/reservations", world.keys["orders"], lost)
        await world.call("GET", "/ops/status", world.keys["ops"])
        await world.until_ready()


WRONG: Mapping[RoleName, tuple[str, ...]] = {
    "gateway": ("redis", "mysql", "amqp"),
    "reconciler": ("redis", "mysql"),
    # It asks RabbitMQ for nothing before it has MySQL.
    "persist-worker": ("amqp",),
}


async def come_with_wrong_passwords(world: Talkative, directory: Path) -> set[str]:
    """Start each kind of process with logins that are none, and a command; the passwords that were tried."""
    tried: set[str] = set()
    children: list[Child] = []
    servers = Servers(world.run_dir)
    environment: dict[str, str] = {}
    try:
        for role, stores in WRONG.items():
            environment = {ADDRESS_SETTINGS[name]: world.stack[name] for name in ADDRESS_SETTINGS}
            for name in stores:
                user, _ = urlsplit(servers.as_role(role, {name: world.stack[name]})[name]).netloc.split(":", 1)
                tried.add(wrong := secrets.token_hex(20))
                environment[ADDRESS_SETTINGS[name]] = with_login(world.stack[name], user, wrong)
            child = Child(f"stranger-{role}", directory / f"stranger-{role}.log")
            port = ["--port", "0"] if role == "gateway" else []
            child.spawn(
                [sys.executable, "-m", "stockgate", role, *port],
                env={
                    **os.environ,
                    **environment,
                    "STOCKGATE_LOG_LEVEL": "debug",
                    "STOCKGATE_API_KEYS_FILE": str(world.run_dir / "api_keys.json"),
                },
            )
            children.append(child)
        environment[ADDRESS_SETTINGS["redis"]] = with_login(world.stack["redis"], "stockgate", min(tried))
        assert await world.command("audit", **environment) != 0
        async with asyncio.timeout(LIMIT_S):
            while not all(refused(child.log_path) for child in children):
                await asyncio.sleep(0.1)
    finally:
        for child in children:
            await child.stop()
    return tried


def refused(log: Path) -> bool:
    text = log.read_text().lower()
    return any(
        word in text for word in ("access denied", "access_denied", "wrongpass", "access_refused", "invalid username")
    )


def said_by_the_kernel() -> Iterator[str]:
    """Command lines and titles of all processes, for whoever types `ps`."""
    for directory in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "comm"):
            try:
                yield (directory / name).read_text(errors="replace")
            except OSError:
                continue


def found_in(text: str, wanted: Mapping[str, str]) -> list[str]:
    return sorted(name for name, secret in wanted.items() if secret in text)


@pytest.mark.timeout(300)
async def test_nothing_secret_is_written_or_answered(talkative: Talkative, tmp_path: Path) -> None:
    each_process_has_its_own_logins(talkative)
    await live(talkative)
    for line in said_by_the_kernel():
        talkative.heard.append(line)
    await lose_every_server_once(talkative)
    await live_again(talkative)
    tried = await come_with_wrong_passwords(talkative, tmp_path)
    for name, url in talkative.stack["metrics"].items():
        for key in ("metrics", "orders"):
            answer = await talkative.call("GET", url, talkative.keys[key])
            assert answer.status_code == (200 if key == "metrics" else 403), name
    assert await talkative.command("audit", "--run-dir", str(talkative.run_dir)) == 0

    wanted = {**talkative.passwords, **{f"key {name}": key for name, key in talkative.keys.items()}}
    wanted |= {f"wrong {number}": password for number, password in enumerate(tried)}
    logs = [*(talkative.run_dir / "log").iterdir(), *tmp_path.glob("stranger-*.log")]
    assert len(logs) > 8
    found = {str(path): found_in(path.read_text(errors="replace"), wanted) for path in logs}
    found |= {f"answer {number}": found_in(text, wanted) for number, text in enumerate(talkative.heard)}
    assert {place: names for place, names in found.items() if names} == {}
    handed_out(talkative)


async def live_again(world: Talkative) -> None:
    """Everything works as before; a 503 is repeated, as callers do."""
    reserve = {"order_id": "o-2", "lines": [{"inventory_key": "k", "qty": 1}]}
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await world.call("POST", "/v1/reservations", world.keys["orders"], reserve)
            if answer.status_code != 503:
                break
            await asyncio.sleep(0.1)
    assert answer.status_code in {200, 201}, answer.text


LOGINS = {
    "gateway-1": {"redis-stockgate", "mariadb-gateway", "rabbitmq-gateway"},
    "persist-worker": {"mariadb-persist-worker", "rabbitmq-persist-worker"},
    "reconciler": {"redis-stockgate", "mariadb-reconciler"},
}


def each_process_has_its_own_logins(world: Talkative) -> None:
    """A process is told no password but those of its own accounts."""
    pids = {process["name"]: process["pid"] for process in world.processes}
    told = {name: Path(f"/proc/{pids[name]}/environ").read_text(errors="replace") for name in LOGINS}
    assert {name: set(found_in(text, world.passwords)) for name, text in told.items()} == LOGINS
    assert not any(found_in(text, world.keys) for text in told.values())


def handed_out(world: Talkative) -> None:
    """Files with secrets are their owner's alone, and none holds more than it is for."""
    text = (world.run_dir / "stack.json").read_text()
    assert set(found_in(text, world.passwords)) == OWNERS
    assert found_in(text, world.keys) == []
    assert found_in((world.run_dir / "supervisor.json").read_text(), {**world.passwords, **world.keys}) == []
    assert found_in((world.run_dir / "api_keys.json").read_text(), world.keys) == [], "hashes, not keys"
    for path in world.run_dir.iterdir():
        if path.is_file() and found_in(path.read_text(errors="replace"), {**world.passwords, **world.keys}):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
