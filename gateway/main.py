"""The entry point of the gateway process."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
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
RESIGN_S: Final = 5
"""Of the time for ending, what is left for the leader to resign and for the doors to close."""
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


def run(
    settings: Settings,
    *,
    fd: int | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    operators_fd: int | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    `fd` is an inherited listening socket; without it one is bound to `host` and `port`. `operators_fd` is the same for
    `operators_listen`. Raises OSError if binding fails.
    """
    collect_seldom(GARBAGE_LOOK)
    logs.configure(settings, "gateway")
    wanted = CROWDED_FACTOR * settings.http_connections_max + OTHER_FILES
    allowed = allow_open_files(wanted)
    if allowed < wanted:
        get_logger().warning("open_files_limited", allowed=allowed, wanted=wanted)
    listener = socket.socket(fileno=fd) if fd is not None else _listen(host, port)
    operators = _operators_listener(settings, operators_fd)
    return run_until_signal(lambda stop: serve(settings, listener, stop, operators), settings)


def _operators_listener(settings: Settings, fd: int | None) -> socket.socket | None:
    if fd is not None:
        return socket.socket(fileno=fd)
    host, _, port = settings.operators_listen.rpartition(":")
    return _listen(host.strip("[]"), int(port)) if port else None


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


async def serve(
    settings: Settings, listener: socket.socket, stop: asyncio.Event, operators: socket.socket | None = None
) -> int:
    """Serve on the socket until `stop` is set, then finish what was accepted; the exit code.

    With a second socket, `operators`, what is theirs is answered there alone. It must have a port of its own.

    The order at the end: not ready, a delay, no new connections, answers to what is in flight, the batcher drained, the
    leadership resigned, the doors closed. A second stop does not hurry it; a kill is as safe. The exit code is 0 where
    nothing was cut short.
    """
    # Accepted connections inherit it. A loop sets it by itself only where it recognises the listener as TCP, and without
    # it an answer waits 40 ms for the caller's delayed acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lifecycle = Lifecycle()
    app = create_app(settings, lifecycle)
    listeners = [listener]
    if operators is not None:
        app.keep_apart(public_port=listener.getsockname()[1], operators_port=operators.getsockname()[1])
        listeners.append(operators)
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
            timeout_graceful_shutdown=_patience_s(settings),
        )
    )
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(_end_server(server, lifecycle, stop, settings.drain_delay_ms / 1000))
        looking = group.create_task(SlowConnections(server.server_state).run())
        try:
            await server.serve(sockets=listeners)
        except SystemExit:
            # uvicorn's way to say that the lifespan did not start; it has logged why.
            return 1
        finally:
            watching.cancel()
            looking.cancel()
    if lifecycle.failure is not None:
        get_logger().error("gateway_failed", exc_info=lifecycle.failure)
    if lifecycle.cut_short:
        get_logger().error("calls_cut_short", count=lifecycle.cut_short)
    return 0 if server.started and lifecycle.failure is None and not lifecycle.cut_short else 1


def _patience_s(settings: Settings) -> int:
    """How long calls in flight may take once no more come: to their deadline, and not so long that no time is left to
    resign and to close.
    """
    deadline_s = -(-settings.answer_deadline_ms // 1000) + 1
    return max(1, min(deadline_s, settings.shutdown_grace_s - RESIGN_S))


async def _end_server(server: uvicorn.Server, lifecycle: Lifecycle, stop: asyncio.Event, drain_delay_s: float) -> None:
    """Ask the server to end when a signal came, after the delay in which a load balancer notices; or something broke."""
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait()) for event in (stop, lifecycle.failed)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    lifecycle.draining = True
    if lifecycle.failure is None and drain_delay_s > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(drain_delay_s):
                await lifecycle.failed.wait()
    server.should_exit = True
