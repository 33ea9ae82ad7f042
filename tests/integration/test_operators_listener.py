"""Operators' endpoints on an address of their own: what is theirs is unknown on the callers'."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest

from gateway import main
from kernel.settings import Settings
from stockgate.servers import Servers
from tests.as_role import as_role
from tests.integration.http_world import fresh_settings


class TwoAddresses:
    """A gateway with two listening sockets, and an operator's key."""

    def __init__(self, public: httpx2.AsyncClient, operators: httpx2.AsyncClient, keys: dict[str, str]) -> None:
        self.public = public
        self.operators = operators
        self.keys = keys

    def headers(self, caller: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.keys[caller]}"}


@pytest.fixture
async def gateway(servers: Servers, tmp_path: Path) -> AsyncGenerator[TwoAddresses]:
    settings, keys = await fresh_settings(servers, tmp_path)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(main.serve(as_role(servers, settings, "gateway"), listeners[0], stop, listeners[1]))
        urls = [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        clients = [httpx2.AsyncClient(base_url=url, timeout=20, trust_env=False) for url in urls]
        try:
            yield TwoAddresses(clients[0], clients[1], keys)
        finally:
            for client in clients:
                await client.aclose()
            stop.set()
            assert await serving == 0


async def test_what_is_for_operators_is_found_on_their_address_alone(gateway: TwoAddresses) -> None:
    ops, metrics = gateway.headers("ops"), gateway.headers("metrics")
    for method, path, headers in (
        ("GET", "/ops/status", ops),
        ("POST", "/ops/status", ops),
        ("POST", "/ops/reconcile", ops),
        ("GET", "/ops/reconcile/1", ops),
        ("GET", "/metrics", metrics),
        ("GET", "/ops/status", {}),
    ):
        refused = await gateway.public.request(method, path, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (404, "NOT_FOUND"), (method, path)
    assert (await gateway.operators.get("/ops/status", headers=ops)).status_code == 200
    assert (await gateway.operators.get("/metrics", headers=metrics)).status_code == 200
    assert (await gateway.operators.get("/ops/status", headers=gateway.headers("orders"))).status_code == 403
    assert (await gateway.operators.post("/ops/status", headers=ops)).status_code == 405
    assert (await gateway.operators.get("/ops/status")).status_code == 401


async def test_callers_and_their_checks_are_answered_as_before(gateway: TwoAddresses) -> None:
    unknown = await gateway.public.get("/v1/inventory/no-such-key", headers=gateway.headers("orders"))
    assert unknown.status_code in {404, 503}, "503 while no epoch is open yet"
    assert unknown.json()["code"] != "NOT_FOUND"
    for client in (gateway.public, gateway.operators):
        assert (await client.get("/health/live")).status_code == 200


@pytest.mark.parametrize("address", ["9090", "host:", ":9090", "host:port", "host:70000", "host:²"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="STOCKGATE_OPERATORS_LISTEN must be host:port"):
        Settings(operators_listen=address)


async def test_both_on_one_port_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(ValueError, match="port of their own"):
        await main.serve(Settings(), listener, asyncio.Event(), listener)
