"""Bounds on what a connection may be: how many there are, how large and how slow a request's head is, who reads no answer.

uvicorn parses and answers; what it leaves open is bounded here, and what is no HTTP hears a problem like any other. A
request that is well costs two comparisons: time is looked at once a second for all connections together.
"""

import asyncio
import secrets
import sys
from collections.abc import Callable
from typing import Any, Final, cast

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.call import State
from gateway.replies import problem_reply
from kernel import limits
from kernel.problems import Problem

LOOK_S: Final = 1.0
CROWDED_FACTOR: Final = 2
"""Connections above the bound hear 503, so that their callers learn why; above so many times the bound they are cut."""

_NOTHING_YET: Final = object()
_NO_TIMER: Final = object()
_UNREAD: Final = object()
_CLOSING: Final = object()

App = Callable[..., Any]


class Connection(HttpToolsProtocol):
    """One caller's connection. `crowded` answers its requests if it is one too many."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections_max: int,
        crowded: App,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections_max = connections_max
        self._crowded = crowded
        self._room = limits.HEAD_BYTES_MAX
        """Bytes that the head that is coming may still have."""
        self._refused = False
        self._offered_at: int | None = None
        """Where, in what came last, the request ends that offered another protocol."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, refuse it politely, or cut it."""
        super().connection_made(cast("asyncio.Transport", transport))
        if len(self.connections) > self._connections_max:
            self.app = self._crowded
            if len(self.connections) > CROWDED_FACTOR * self._connections_max:
                self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand on to the parser, never more than the head may still have, so that its bound is exact."""
        if len(data) > self._room:
            self._received_in_pieces(data)
            return
        before = self.cycle
        quiet = not before or before.response_complete
        super().data_received(data)
        if self._offered_at is not None:
            self._pass_over(data[self._offered_at :])
        if self._head_is_complete():
            self._room = limits.HEAD_BYTES_MAX
        elif quiet and self.cycle is before:
            # Where requests follow each other without a pause, what of the bytes belongs to which is not known: a head
            # that begins there is counted from its second piece.
            self._room -= len(data)
            if not self._room:
                self.refuse(Problem("HEAD_TOO_LARGE", f"a request's head may have {limits.HEAD_BYTES_MAX} bytes"))

    def _received_in_pieces(self, data: bytes) -> None:
        while data and not self._refused:
            piece, data = data[: self._room], data[self._room :]
            self.data_received(piece)

    def _head_is_complete(self) -> bool:
        return bool(self.cycle) and self.cycle.scope is self.scope

    def _unsupported_upgrade_warning(self) -> None:
        """Note where the parser stopped, called while its exception is handled."""
        stopped = sys.exc_info()[1]
        self._offered_at = cast("int", stopped.args[0]) if stopped else None

    def _pass_over(self, rest: bytes) -> None:
        """Go on with HTTP/1.1 as if no other protocol had been offered, as many clients do with every first request.

        The parser takes all behind the head for the other protocol, so its body is read by a new one, which is told the
        head again without the offer. The call itself has not begun yet.
        """
        self._offered_at = None
        cycle = self.cycle
        cycle.more_body = True
        cycle.message_event.clear()
        self.parser = httptools.HttpRequestParser(_BehindHead(self))
        kept = [(name, value) for name, value in self.headers if name in {b"content-length", b"transfer-encoding"}]
        lines = (b"%s: %s\r\n" % header for header in kept)
        self.parser.feed_data(b"".join([cycle.scope["method"].encode(), b" / HTTP/1.1\r\n", *lines, b"\r\n"]))
        if rest:
            self.data_received(rest)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as everything else is answered."""
        self.refuse(Problem("MALFORMED_HTTP", msg))

    def refuse(self, problem: Problem) -> None:
        """Say what is wrong with what came last, and close.

        An answer that an earlier request is still owed goes first and is the last one: it must not be taken for this.
        """
        if self._refused or self.transport.is_closing():
            return
        cycle = self.cycle
        if cycle and not cycle.response_complete:
            if not (self._head_is_complete() and cycle.more_body):
                cycle.keep_alive = False
                self.flow.pause_reading()
                return
            if self.pipeline:
                cycle.keep_alive = False
                self.pipeline[0] = (cycle, _answering(problem))
                return
            # Whoever waits for the rest of this body has done nothing yet.
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self.transport.close()
                return
        self._refused = True
        self._write(problem)
        # A connection that is closed while something unread lies in it takes the answer with it.
        self.transport.write_eof()
        self.transport.set_protocol(_Discarding(self))

    def shutdown(self) -> None:
        """Close as soon as what was accepted is answered."""
        if self._refused:
            self.transport.close()
        else:
            super().shutdown()

    def _write(self, problem: Problem) -> None:
        request_id = secrets.token_hex(6)
        reply = problem_reply(problem, request_id)
        metrics = cast("State", self.app_state)["metrics"]
        metrics.http_requests_total.labels("unknown", str(reply.status)).inc()
        headers = [
            *self.server_state.default_headers,
            *(header for header in reply.headers if header[0] != b"connection"),
            (b"content-length", b"%d" % len(reply.body)),
            (b"x-request-id", request_id.encode()),
            (b"connection", b"close"),
        ]
        lines = (b"%s: %s\r\n" % header for header in headers)
        self.transport.write(b"".join([STATUS_LINE[reply.status], *lines, b"\r\n", reply.body]))

    def waits_for(self) -> object | None:
        """What the other side owes without a time limit of its own; the same object as long as it is the same debt."""
        if self._refused or self.transport.is_closing():
            return _CLOSING
        if self.flow.write_paused:
            return _UNREAD
        if not self.scope:
            return _NOTHING_YET
        if not self._head_is_complete():
            return self.scope
        # A line feed between two requests stops the time of an idle connection, and nothing starts it again.
        return _NO_TIMER if self.cycle.response_complete and not self._is_timed() else None

    def _is_timed(self) -> bool:
        return self.timeout_keep_alive_task is not None

    def give_up(self, waits_for: object) -> None:
        """The time for it is over."""
        if waits_for is self.scope:
            self.refuse(Problem("REQUEST_TIMEOUT", f"the head took longer than {limits.HEAD_READ_MS_MAX // 1000} s"))
        elif waits_for is _NOTHING_YET or waits_for is _NO_TIMER:
            self.transport.close()
        else:
            self.transport.abort()


class _BehindHead:
    """Hands a parser's findings to a connection, but for the first head, which it knows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_known = True

    def on_message_begin(self) -> None:
        if not self._is_known:
            self._connection.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_known:
            self._connection.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_known:
            self._connection.on_header(name, value)

    def on_headers_complete(self) -> None:
        if not self._is_known:
            self._connection.on_headers_complete()
        self._is_known = False

    def on_body(self, body: bytes) -> None:
        self._connection.on_body(body)

    def on_message_complete(self) -> None:
        self._connection.on_message_complete()


class _Discarding(asyncio.Protocol):
    """What is left of a refused connection: reads on, for a while, until the other side has read the answer and closes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._room = limits.DISCARDED_BYTES_MAX

    def data_received(self, data: bytes) -> None:
        self._room -= len(data)
        if self._room < 0:
            self._connection.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)


def _answering(problem: Problem) -> App:
    """An ASGI application that says only this."""

    async def answer(_scope: Any, _receive: Any, send: Any) -> None:
        reply = problem_reply(problem, "")
        length = (b"content-length", b"%d" % len(reply.body))
        await send({"type": "http.response.start", "status": reply.status, "headers": [*reply.headers, length]})
        await send({"type": "http.response.body", "body": reply.body})

    return answer


class SlowConnections:
    """Looks at all connections once a second and gives up those that owe something for too long."""

    def __init__(self, server_state: ServerState) -> None:
        self._server_state = server_state
        self._seen: dict[Connection, tuple[object, float]] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            self.look(loop.time())

    def look(self, now: float) -> None:
        """One look; `now` is the loop's time in seconds."""
        seen: dict[Connection, tuple[object, float]] = {}
        for connection in cast("list[Connection]", list(self._server_state.connections)):
            owed = connection.waits_for()
            if owed is None:
                continue
            before, since = self._seen.get(connection, (None, now))
            if before is not owed:
                since = now
            if (now - since) * 1000 >= _patience_ms(connection, owed):
                connection.give_up(owed)
                since = now
            seen[connection] = (owed, since)
        self._seen = seen


def _patience_ms(connection: Connection, owed: object) -> int:
    is_head = owed is connection.scope or owed is _NOTHING_YET or owed is _NO_TIMER
    return limits.HEAD_READ_MS_MAX if is_head else limits.ANSWER_WRITE_MS_MAX
