"""uvicorn's HTTP/1.1 protocol with less work for each request: plain paths, whole replies, one timer for an idle connection.

Whatever is out of the ordinary stays uvicorn's: other paths, upgrades, pipelining, flow control, bodies that trickle in,
callers that hang up, the end of the process. Rests on attributes of uvicorn that it does not promise, hence the narrow
requirement in `pyproject.toml`.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

REPLY: Final = "stockgate.reply"
"""Name of the ASGI extension that sends a whole reply at once: `Cycle.reply`."""

_BUSY: Final = -1.0
_PLAIN_PATH: Final = re.compile(rb"/(?:[\w.~-][\w.~/-]*)?", re.ASCII).fullmatch
"""What needs no parsing: no host, no query, nothing encoded."""


class Cycle(RequestResponseCycle):
    """One request and its reply."""

    def reply(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole reply; False where that is not to be had, and nothing was sent: then use ASGI's messages.

        Looks at nothing twice: content-length must be among the headers, connection must not, and names and values must be
        fit to be sent.
        """
        if self.response_started or self.flow.write_paused or self.scope["method"] == "HEAD":
            return False
        if self.disconnected:
            return True
        self.response_started = True
        self.waiting_for_100_continue = False
        parts = [STATUS_LINE[status]]
        parts += [b"%b: %b\r\n" % header for header in self.default_headers]
        parts += [b"%b: %b\r\n" % header for header in headers]
        parts += (b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n", body)
        self.transport.write(b"".join(parts))
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
        return True


class GatewayProtocol(HttpToolsProtocol):
    """One connection. Its timer is set anew when it finds the connection busy, or idle for too short a time."""

    _idle_since = _BUSY
    """Loop time since which nobody has asked anything; _BUSY while a request is read or answered."""

    def on_headers_complete(self) -> None:
        """Begin a request."""
        url, parser = self.url, cast("Any", self.parser)
        if not _PLAIN_PATH(url) or self.limit_concurrency is not None or parser.should_upgrade():
            super().on_headers_complete()
            return
        http_version = parser.get_http_version()
        scope = cast("dict[str, Any]", self.scope)
        scope["method"] = parser.get_method().decode("ascii")
        scope["http_version"] = http_version
        scope["path"] = self.root_path + url.decode("ascii")
        scope["raw_path"] = self.root_path.encode("ascii") + url
        scope["query_string"] = b""
        before = self.cycle
        self.cycle = cycle = Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=http_version != "1.0" and parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        scope["extensions"] = {REPLY: cycle.reply}
        # The application that was running when this one came may still be at work: replies keep the order of requests.
        app = cast("ASGI3Application", self.app)
        if before is None or before.response_complete:  # pyright: ignore[reportUnnecessaryComparison]  # None at first
            self._start_asgi_task(cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))

    def on_response_complete(self) -> None:
        """Go on with the next pipelined request, or be idle from now on."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._set_timer(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it was idle for the whole time."""
        self.timeout_keep_alive_task = None
        if self._idle_since == _BUSY:
            return
        left_s = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left_s <= 0:
            super().timeout_keep_alive_handler()
        else:
            self._set_timer(left_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the timer."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = _BUSY

    def _set_timer(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)
