"""The entry point of the gateway process."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import uvicorn

from gateway.app import create_app
from gateway.call import Lifecycle
from gateway.connections import CROWDED_FACTOR, SlowConnections
from gateway.express import ExpressConnection
from kernel import logs
from kernel.logs import get_logger
from kernel.process import allow_open_files, collect_seldom, run_until_signal
from kernel.settings import Settings

KEEP_ALIVE_S: Final = 65
"""Longer than a load balancer's usual minute, so that it is the one who closes an idle connection."""
BACKLOG: Final = 2_048
GARBAGE_LOOK: Final = 50_000
"""Requests make hardly any cycles of garbage: only failures do."""
OTHER_FILES: Final = 512
"""Files that are no caller's connection: those to the stores, logs, the loop's own."""


class GatewayServer(uvicorn.Server):
    """uvicorn without its own signal handling: `kernel.process` has the signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals alone."""
        yield


def run(settings: Settings, *, fd: int | None = None, host: str = "127.0.0.1", port: int = 8080) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    `fd` is an inherited listening socket; without it one is bound to `host` and `port`. Raises OSError if that fails.
    """
    collect_seldom(GARBAGE_LOOK)
    logs.configure(settings, "gateway")
    wanted = CROWDED_FACTOR * settings.http_connections_max + OTHER_FILES
    allowed = allow_open_files(wanted)
    if allowed < wanted:
        get_logger().warning("open_files_limited", allowed=allowed, wanted=wanted)
    listener = socket.socket(fileno=fd) if fd is not None else _listen(host, port)
    return run_until_signal(lambda stop: serve(settings, listener, stop), settings)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


async def serve(settings: Settings, listener: socket.socket, stop: asyncio.Event) -> int:
    """Serve on the socket until `stop` is set, then finish what was accepted; the exit code.

    The order at the end: not ready, no new connections, answers to what is in flight, the batcher drained, the
    leadership resigned, the doors closed. A second stop does not hurry it; a kill is as safe.
    """
    # Accepted connections inherit it. A loop sets it by itself only where it recognises the listener as TCP, and without
    # it an answer waits 40 ms for the caller's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lifecycle = Lifecycle()
    app = create_app(settings, lifecycle)
    connection = partial(ExpressConnection, connections_max=settings.http_connections_max, crowded=app.crowded)
    server = GatewayServer(
        uvicorn.Config(
            app,
            # It only calls it, so what makes a protocol does as well as its class.
            http=cast("Any", connection),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            # Nothing here looks at the caller's address.
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=settings.shutdown_grace_s,
        )
    )
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_end_server(server, lifecycle, stop))
        looking = group.create_task(SlowConnections(server.server_state).run())
        try:
            await server.serve(sockets=[listener])
        except SystemExit:
            # uvicorn's way to say that the lifespan did not start; it has logged why.
            return 1
        finally:
            watching.cancel()
            looking.cancel()
    if lifecycle.failure is not None:
        get_logger().error("gateway_failed", exc_info=lifecycle.failure)
    return 0 if server.started and lifecycle.failure is None else 1


async def _end_server(server: uvicorn.Server, lifecycle: Lifecycle, stop: asyncio.Event) -> None:
    """Ask the server to end when a signal came or something broke."""
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait()) for event in (stop, lifecycle.failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    lifecycle.draining = True
    server.should_exit = True
