"""Health and metrics of a process without an HTTP API, over a real port."""

import asyncio
import hashlib
import json
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kernel.health import serve
from kernel.metrics import Metrics
from kernel.settings import Settings


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture
async def missing(port: int, tmp_path: Path) -> AsyncGenerator[dict[str, str]]:
    """A served process; what it misses may be changed."""
    keys = tmp_path / "keys.json"
    keys.write_text(
        json.dumps(
            [
                {"name": name, "tenant": "t", "scopes": [name], "sha256": hashlib.sha256(name.encode()).hexdigest()}
                for name in ("metrics", "orders")
            ]
        )
    )
    missing = dict[str, str]()
    settings = Settings(metrics_port=port, api_keys_file=keys)
    serving = asyncio.create_task(serve(settings, lambda: missing, Metrics()))
    async with asyncio.timeout(10):
        while (await get(port, "/health/live"))[0] != 200:
            await asyncio.sleep(0.01)
    yield missing
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert (await get(port, "/health/live"))[0] == 0


async def get(port: int, path: str, *, method: str = "GET", key: str = "") -> tuple[int, bytes, bytes]:
    """Status, headers and body; status 0 where nobody listens."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return 0, b"", b""
    header = f"Authorization: Bearer {key}\r\n" if key else ""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n".encode())
    head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), head.lower(), body


async def test_live_and_ready(missing: dict[str, str], port: int) -> None:
    assert (await get(port, "/health/live"))[2] == b'{"live":true}'
    assert json.loads((await get(port, "/health/ready"))[2]) == {"ready": True, "missing": {}}
    missing["rabbitmq"] = "not connected"
    status, _, body = await get(port, "/health/ready")
    assert (status, json.loads(body)) == (503, {"ready": False, "missing": {"rabbitmq": "not connected"}})
    assert (await get(port, "/health/live"))[0] == 200


async def test_metrics_ask_for_their_scope(missing: dict[str, str], port: int) -> None:
    status, headers, body = await get(port, "/metrics", key="metrics")
    assert status == 200
    assert b"content-type: text/plain" in headers
    assert b"stockgate_ready 1.0" in body
    missing["mysql"] = "away"
    body = (await get(port, "/metrics", key="metrics"))[2]
    assert b"stockgate_ready 0.0" in body
    assert b'stockgate_missing{dependency="mysql"} 1.0' in body
    missing.clear()
    assert b"stockgate_missing{" not in (await get(port, "/metrics", key="metrics"))[2]
    assert [(await get(port, "/metrics", key=key))[0] for key in ("", "wrong", "orders")] == [401, 401, 403]
    assert missing == {}


async def test_anything_else_is_a_problem(missing: dict[str, str], port: int) -> None:
    status, headers, body = await get(port, "/nothing")
    assert (status, json.loads(body)["code"]) == (404, "NOT_FOUND")
    assert b"content-type: application/problem+json" in headers
    assert (await get(port, "/health/live", method="POST"))[0] == 405
    assert (await get(port, "/health/live", method="HEAD"))[::2] == (200, b"")
    assert missing == {}


async def test_without_a_port_nothing_is_served_and_a_taken_port_raises() -> None:
    await serve(Settings(), dict[str, str], Metrics())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taken = Settings(metrics_port=listener.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await serve(taken, dict[str, str], Metrics())
