"""Every role ends when it is asked to: in order, with nothing cut short, and in time even where no store answers."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import httpx2
import pytest
import uvicorn
from pydantic import SecretStr

from gateway import main
from gateway.app import open_state
from gateway.call import Lifecycle
from inventory.batcher import Batcher
from inventory.leader import Leader
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from persist_worker.main import work
from stockgate.ports import choose_port
from stockgate.processes import Child
from stockgate.servers import Servers
from tests.integration.http_world import fresh_settings
from tests.proxy import Proxy, proxy_to

ROLES: Final = ("leader", "persist-worker", "reconciler", "gateway")
STORES: Final = ("redis", "mysql", "amqp")
GRACE_S: Final = 6
PATIENCE_S: Final = 60.0
"""Far beyond what a role has: whoever is not gone then ignores that it was asked."""


class Roles:
    """Every role as a process of its own, behind proxies to all stores."""

    def __init__(self, settings: Settings, directory: Path, key: str) -> None:
        self._settings = settings
        self._directory = directory
        self._key = key
        self._children: dict[str, Child] = {}
        self._ports: dict[str, int] = {}
        self.url = ""

    def spawn(self) -> None:
        taken: set[int] = set()
        for role in ROLES:
            child = self._children.setdefault(role, Child(role, self._directory / f"{role}.log"))
            port = self._ports[role] = choose_port(taken)
            taken.add(port)
            settings = self._settings
            environment = {
                "STOCKGATE_REDIS_URL": settings.redis_url.get_secret_value(),
                "STOCKGATE_MYSQL_URL": settings.mysql_url.get_secret_value(),
                "STOCKGATE_AMQP_URL": settings.amqp_url.get_secret_value(),
                "STOCKGATE_API_KEYS_FILE": str(settings.api_keys_file),
                "STOCKGATE_RUN_LEADER": "false",
                "STOCKGATE_SHUTDOWN_GRACE_S": str(GRACE_S),
                "STOCKGATE_METRICS_PORT": "0" if role == "gateway" else str(port),
            }
            more = ["--port", str(port)] if role == "gateway" else []
            child.spawn([sys.executable, "-m", "stockgate", role, *more], env={**os.environ, **environment})
        self.url = f"http://127.0.0.1:{self._ports['gateway']}"

    async def until_ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S), httpx2.AsyncClient(trust_env=False, timeout=5) as http:
            for role in ROLES:
                while True:
                    try:
                        reply = await http.get(f"http://127.0.0.1:{self._ports[role]}/health/ready")
                        if reply.status_code == 200:
                            break
                    except httpx2.TransportError:
                        pass
                    await asyncio.sleep(0.1)

    async def ask_to_end(self) -> None:
        """SIGTERM twice, as an impatient operator does."""
        for _ in range(2):
            for child in self._children.values():
                await child.kill(signal.SIGTERM)

    async def exit_codes(self) -> dict[str, int]:
        async with asyncio.timeout(PATIENCE_S):
            return {role: await child.wait() for role, child in self._children.items()}

    async def kill(self) -> None:
        for child in self._children.values():
            await child.kill(signal.SIGKILL)

    def log(self, role: str) -> str:
        return self._children[role].log_path.read_text()

    async def read_key(self) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=self.url, trust_env=False, timeout=PATIENCE_S) as http:
            return await http.get("/v1/inventory/nobody's", headers={"authorization": f"Bearer {self._key}"})


@asynccontextmanager
async def roles_on(servers: Servers, directory: Path) -> AsyncGenerator[tuple[Roles, list[Proxy]]]:
    settings, keys = await fresh_settings(servers, directory)
    urls = {store: getattr(settings, f"{store}_url") for store in STORES}
    async with AsyncExitStack() as stack:
        proxies = {store: await stack.enter_async_context(proxy_to(urls[store].get_secret_value())) for store in STORES}
        through = {
            f"{store}_url": type(urls[store])(proxies[store].url(urls[store].get_secret_value())) for store in STORES
        }
        roles = Roles(settings.model_copy(update=through), directory, keys["all"])
        try:
            yield roles, list(proxies.values())
        finally:
            await roles.kill()


@pytest.mark.timeout(300)
async def test_every_role_ends_clean_and_in_time_even_where_no_store_answers(servers: Servers, tmp_path: Path) -> None:
    async with roles_on(servers, tmp_path) as (roles, proxies):
        roles.spawn()
        await roles.until_ready()
        await roles.ask_to_end()
        assert await roles.exit_codes() == dict.fromkeys(ROLES, 0)
        roles.spawn()
        await roles.until_ready()
        for proxy in proxies:
            proxy.blackhole()
        # Accepted, and not to be answered in time: whoever asked hears that, and the exit code tells it.
        reading = asyncio.create_task(roles.read_key())
        await asyncio.sleep(1)
        await roles.ask_to_end()
        codes = await roles.exit_codes()
        assert set(codes.values()) <= {0, 1}, "none was ended by a signal"
        assert "Traceback" not in roles.log("leader"), roles.log("leader")
        reply = await reading
        assert (reply.status_code, reply.json()["outcome"], codes["gateway"]) in {
            (503, "unknown", 1),
            # MySQL was known to hang already.
            (503, "not_executed", 0),
        }


async def test_a_gateway_closes_from_its_outside_inward(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = await fresh_settings(servers, tmp_path)
    order: list[str] = []

    def note(owner: type[Any], method: str, what: str) -> None:
        original = getattr(owner, method)

        async def noted(*arguments: Any, **named: Any) -> Any:
            try:
                return await original(*arguments, **named)
            finally:
                if what not in order:
                    order.append(what)

        monkeypatch.setattr(owner, method, noted)

    note(Batcher, "drain", "batcher drained")
    note(Leader, "run", "leadership resigned")
    note(RedisDoor, "close", "doors closed")
    note(Database, "close", "pools closed")
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(work(settings, stop))
        lifecycle = Lifecycle()
        async with open_state(settings, lifecycle) as state:
            async with asyncio.timeout(PATIENCE_S):
                while not state["leader"].status.leading:
                    await asyncio.sleep(0.02)
            # What the leader closes when it ends is its own.
            order.clear()
        assert order[0] == "batcher drained"
        assert order.index("leadership resigned") < order.index("pools closed")
        assert lifecycle.failure is None
        stop.set()
        assert await worker == 0


async def test_it_is_not_ready_some_time_before_it_takes_no_more_connections() -> None:
    lifecycle, stop = Lifecycle(), asyncio.Event()
    server = cast("uvicorn.Server", type("Server", (), {"should_exit": False})())
    ending = asyncio.create_task(main._end_server(server, lifecycle, stop, 0.2))
    stop.set()
    while not lifecycle.draining:
        await asyncio.sleep(0)
    assert not server.should_exit
    await ending
    assert server.should_exit

    # Something that broke is no reason to go on.
    lifecycle = Lifecycle()
    server.should_exit = False
    lifecycle.fail(ValueError("a bug"))
    async with asyncio.timeout(PATIENCE_S):
        await main._end_server(server, lifecycle, asyncio.Event(), 1_000)
    assert server.should_exit


async def test_a_delay_leaves_the_listener_open(tmp_path: Path) -> None:
    """No store is needed to say that one ends."""
    keys, nowhere = tmp_path / "keys.json", f"127.0.0.1:{choose_port(set())}"
    keys.write_text("[]")
    urls = {f"{store}_url": SecretStr(f"{store}://{nowhere}/0") for store in STORES}
    settings = Settings.model_validate({**urls, "api_keys_file": keys, "run_leader": False, "drain_delay_ms": 60_000})
    listener = socket.create_server(("127.0.0.1", 0))
    port, stop = listener.getsockname()[1], asyncio.Event()
    serving = asyncio.create_task(main.serve(settings, listener, stop))
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20) as http:
        assert (await http.get("/health/live")).status_code == 200
        stop.set()
        async with asyncio.timeout(PATIENCE_S):
            while "shutting down" not in (await http.get("/health/ready", headers={"connection": "close"})).text:
                await asyncio.sleep(0.01)
        assert (await http.get("/health/live", headers={"connection": "close"})).status_code == 200
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    listener.close()
