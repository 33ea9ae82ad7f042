"""`/health/live`, `/health/ready` and `/metrics` for processes that have no HTTP API of their own."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import uvicorn

from kernel import metrics as metrics_format
from kernel.auth import KeyRing
from kernel.metrics import Metrics
from kernel.problems import CONTENT_TYPE, Problem
from kernel.settings import Settings

Readiness = Callable[[], Mapping[str, str]]
"""What is missing right now, by dependency, and why; empty = ready. Answers at once from what the process knows."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

Refresh = Callable[[], Awaitable[None]]
"""Looks at what the process does not know without asking, before an answer is made of it."""

CONNECTIONS_MAX: Final = 32


class HealthApp:
    """The ASGI application. With a key ring `/metrics` asks for the scope `metrics`; `/health/*` is open."""

    def __init__(
        self, readiness: Readiness, metrics: Metrics, keys: KeyRing | None, refresh: Refresh | None = None
    ) -> None:
        self._readiness = readiness
        self._metrics = metrics
        self._keys = keys
        self._refresh = refresh

    async def __call__(self, scope: MutableMapping[str, Any], _receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            status, content_type, body = await self._answer(scope)
        except Problem as problem:
            status, content_type, body = problem.status, CONTENT_TYPE, problem.body()
        headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _answer(self, scope: MutableMapping[str, Any]) -> tuple[int, str, bytes]:
        if scope["method"] not in {"GET", "HEAD"}:
            raise Problem("METHOD_NOT_ALLOWED", allowed=["GET", "HEAD"])
        match scope["path"]:
            case "/health/live":
                return 200, "application/json", b'{"live":true}'
            case "/health/ready":
                await self._look()
                missing = dict(self._readiness())
                body = msgspec.json.encode({"ready": not missing, "missing": missing})
                return 503 if missing else 200, "application/json", body
            case "/metrics":
                if self._keys is not None:
                    self._check_scope(self._keys, scope["headers"])
                    self._metrics.show_key_expiry(self._keys.next_expiry_ms)
                await self._look()
                self._metrics.show_readiness(self._readiness())
                return 200, metrics_format.CONTENT_TYPE, self._metrics.render()
            case _:
                raise Problem("NOT_FOUND")

    async def _look(self) -> None:
        if self._refresh is not None:
            await self._refresh()

    def _check_scope(self, keys: KeyRing, headers: list[tuple[bytes, bytes]]) -> None:
        principal = keys.authenticate(dict(headers).get(b"authorization"))
        if "metrics" not in principal.scopes:
            raise Problem("FORBIDDEN", "needs the scope metrics")


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals alone: they belong to `kernel.process`."""
        yield


async def serve(settings: Settings, readiness: Readiness, metrics: Metrics, refresh: Refresh | None = None) -> None:
    """Serve until cancelled, and measure the event loop; returns at once where `metrics_port` is 0.

    Raises OSError if the port is taken.
    """
    if settings.metrics_port == 0:
        return
    keys = KeyRing.load(settings) if settings.api_keys_file is not None else None
    config = uvicorn.Config(
        HealthApp(readiness, metrics, keys, refresh),
        lifespan="off",
        log_config=None,
        access_log=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    # Bound here, because uvicorn would end the process where it cannot bind.
    listener = socket.create_server((settings.metrics_host, settings.metrics_port), reuse_port=False)
    watching = asyncio.create_task(metrics.watch_loop())
    try:
        await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        if server.started:
            await server.shutdown(sockets=[listener])
        raise
    finally:
        watching.cancel()
        listener.close()
