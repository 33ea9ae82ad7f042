"""A gateway's beginning and end, as a process and in this loop; and what it says while a store is away."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from client import Done, NotExecuted, OutcomeUnknown, StockgateClient
from gateway import main
from inventory.batcher import Batcher
from kernel.settings import Settings
from persist_worker.main import work
from stockgate.ports import choose_port
from stockgate.processes import Child
from stockgate.servers import Servers
from tests.filtered import until_filtered
from tests.integration.http_world import HttpWorld, fresh_settings


class GatewayProcess:
    """`stockgate gateway` as a process of its own."""

    def __init__(self, settings: Settings, directory: Path, name: str, failpoints: str = "") -> None:
        self.port = choose_port(set())
        self.url = f"http://127.0.0.1:{self.port}"
        self.child = Child(name, directory / f"{name}.log")
        environment = {
            "STOCKGATE_REDIS_URL": settings.redis_url.get_secret_value(),
            "STOCKGATE_MYSQL_URL": settings.mysql_url.get_secret_value(),
            "STOCKGATE_AMQP_URL": settings.amqp_url.get_secret_value(),
            "STOCKGATE_API_KEYS_FILE": str(settings.api_keys_file),
            "STOCKGATE_HOLD_GRACE_MS": "0",
            "STOCKGATE_FAILPOINTS": failpoints,
        }
        self.child.spawn(
            [sys.executable, "-m", "stockgate", "gateway", "--port", str(self.port)], env={**os.environ, **environment}
        )

    def log(self) -> str:
        return self.child.log_path.read_text()


@asynccontextmanager
async def world_of(
    servers: Servers, directory: Path, *names: str, failpoints: str = ""
) -> AsyncGenerator[tuple[HttpWorld, list[GatewayProcess]]]:
    """Gateways as processes, the first with the failpoints, and a worker here; the world speaks to the last one."""
    settings, keys = await fresh_settings(servers, directory)
    stop = asyncio.Event()
    gateways = [GatewayProcess(settings, directory, name, failpoints * (not n)) for n, name in enumerate(names)]
    world = HttpWorld(servers, settings, keys, gateways[-1].url)
    async with asyncio.TaskGroup() as group:
        worker = group.create_task(work(settings, stop))
        try:
            await world.until_ready()
            yield world, gateways
        finally:
            for gateway in gateways:
                await gateway.child.kill(signal.SIGKILL)
            await world.http.aclose()
            stop.set()
            await worker


async def test_a_gateway_finishes_what_it_accepted(servers: Servers, tmp_path: Path) -> None:
    async with world_of(servers, tmp_path, "only") as (world, (gateway,)):
        key = await world.stocked(100_000)
        answered: list[int] = []
        refused_connections = 0

        async def buy() -> None:
            nonlocal refused_connections
            while True:
                body = {"order_id": world.fresh("o"), "lines": [{"inventory_key": key, "qty": 1}]}
                reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
                content = str(body).replace("'", '"').encode()
                head = (
                    f"POST /v1/reservations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.keys['all']}\r\n"
                    f"Content-Length: {len(content)}\r\n\r\n"
                )
                writer.write(head.encode() + content)
                answer = await reader.read(1000)
                writer.close()
                if not answer:
                    refused_connections += 1
                    return
                answered.append(int(answer.split()[1]))

        buyers = [asyncio.create_task(buy()) for _ in range(16)]
        await asyncio.sleep(1.0)
        await gateway.child.kill(signal.SIGTERM)
        assert await gateway.child.wait() == 0, gateway.log()
        await asyncio.gather(*buyers, return_exceptions=True)
        assert len(answered) > 50
        assert set(answered) == {201}, "accepted is answered, and nothing is answered with a failure"
        again = GatewayProcess(world.settings, tmp_path, "again")
        try:
            world.http.base_url = again.url
            world.url = again.url
            await world.until_ready()
            # A connection that was closed unread may or may not have been decided; an answered one was.
            _, reserved, *_ = await world.quantities(key)
            assert len(answered) <= reserved <= len(answered) + refused_connections
        finally:
            await again.child.kill(signal.SIGKILL)


async def test_an_answer_that_was_lost_is_learned_from_another_gateway(servers: Servers, tmp_path: Path) -> None:
    failpoints = "gateway.before_answer=kill@40"
    async with world_of(servers, tmp_path, "dies", "lives", failpoints=failpoints) as (world, (dying, living)):
        key = await world.stocked(1)
        world.http.base_url = dying.url
        for _ in range(30):
            with suppress(httpx2.TransportError):
                if (await world.http.get("/health/ready")).status_code == 200:
                    break
            await asyncio.sleep(0.3)
        lost = StockgateClient(dying.url, world.keys["all"])
        living_client = StockgateClient(living.url, world.keys["all"])
        async with lost, living_client:

            async def until_it_dies() -> None:
                while True:
                    await lost.reserve("the-last-one", {key: 1}, deadline_s=2)

            with pytest.raises((OutcomeUnknown, NotExecuted)):
                await until_it_dies()
            assert dying.child.exit_code == -signal.SIGKILL
            learned = await living_client.reserve("the-last-one", {key: 1})
            assert isinstance(learned, Done)
            assert learned.replay
            assert learned.value.status == "RESERVED"
        world.http.base_url = living.url
        assert await world.quantities(key) == (0, 1, 0, 0, 0)


async def test_what_is_missing_is_named_and_what_can_go_on_goes_on(servers: Servers, tmp_path: Path) -> None:
    async with HttpWorld.open(servers, tmp_path, answer_deadline_ms=3000, mysql_timeout_ms=1000) as world:
        key = await world.stocked(10)
        order_id = await world.reserved(key, 1)

        async def missing() -> set[str]:
            reply = await world.call("GET", "/health/ready", caller=None)
            assert reply.status_code == (503 if reply.json()["missing"] else 200)
            return set(reply.json()["missing"])

        async def until_missing(names: set[str]) -> None:
            async with asyncio.timeout(20):
                while await missing() != names:
                    await asyncio.sleep(0.1)

        assert await missing() == set()
        await world.settled()
        await until_filtered(world.settings.redis_url.get_secret_value())
        await world.call("GET", f"/v1/reservations/{order_id}")
        await servers.mariadb.stop()
        try:
            await until_missing({"mysql"})
            body = {"order_id": world.fresh("o"), "lines": [{"inventory_key": key, "qty": 1}]}
            new = await world.call("POST", "/v1/reservations", body)
            assert new.status_code == 201, "so does a new one: the filter says that it is new"
            change = {"delta": 1, "request_no": world.fresh("r"), "reason": "test"}
            reply = await world.call("POST", f"/v1/inventory/{key}/adjust", change)
            assert (reply.status_code, reply.json()["outcome"]) == (503, "not_executed"), reply.text
            assert reply.headers["retry-after"] == "1"
            confirmed = await world.call("POST", f"/v1/reservations/{order_id}/confirm", {})
            assert confirmed.status_code == 200, "a known order goes on without MySQL"
            read = await world.call("GET", f"/v1/inventory/{key}")
            assert (read.status_code, read.json()["code"]) == (503, "UNAVAILABLE")
            status = (await world.call("GET", "/ops/status")).json()["shards"][0]
            assert "mysql" in status["missing"]
        finally:
            await servers.mariadb.start()
        await until_missing(set())
        assert (await world.call("POST", "/v1/reservations", body)).status_code == 200
        await servers.redis.stop()
        try:
            await until_missing({"redis"})
            reply = await world.call("POST", f"/v1/reservations/{order_id}/consume", {})
            assert (reply.status_code, reply.json()["outcome"]) == (503, "not_executed"), reply.text
            live = await world.call("GET", "/health/live", caller=None)
            assert live.status_code == 200
        finally:
            await servers.redis.start()
        await until_missing(set())
        assert (await world.call("POST", f"/v1/reservations/{order_id}/consume", {})).status_code == 200


async def test_a_gateway_whose_batcher_fails_ends_itself(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, _ = await fresh_settings(servers, tmp_path, run_leader=False)

    async def fails(_self: Batcher) -> None:
        await asyncio.sleep(0.3)
        raise ValueError("a bug")

    monkeypatch.setattr(Batcher, "run", fails)
    listener = socket.create_server(("127.0.0.1", 0))
    async with asyncio.timeout(20):
        assert await main.serve(settings, listener, asyncio.Event()) == 1


async def test_a_gateway_without_readable_keys_does_not_start(servers: Servers, tmp_path: Path) -> None:
    settings, _ = await fresh_settings(servers, tmp_path, run_leader=False)
    assert settings.api_keys_file is not None
    settings.api_keys_file.write_text("nonsense")
    listener = socket.create_server(("127.0.0.1", 0))
    async with asyncio.timeout(20):
        assert await main.serve(settings, listener, asyncio.Event()) == 1


async def test_acknowledged_by_redis_alone_says_so(servers: Servers, tmp_path: Path) -> None:
    async with HttpWorld.open(servers, tmp_path, ack="redis") as world:
        key = await world.stocked(3)
        body: dict[str, Any] = {"order_id": world.fresh("o"), "lines": [{"inventory_key": key, "qty": 1}]}
        reply = await world.call("POST", "/v1/reservations", body)
        assert (reply.status_code, reply.headers["durability"]) == (201, "redis")
