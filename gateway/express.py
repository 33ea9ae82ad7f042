"""The express lane: a connection that answers an ordinary call without a task, a scope or ASGI's messages.

Ordinary is a call of one operation (`reservations.OneOperation`) that came in one piece, by HTTP/1.1, with a key that has
neither limit nor prefix, and that can be planned. Everything else, and whatever is wrong with a call, goes the long way:
uvicorn's, through `Dispatch`, which alone says no before an operation is submitted. So the lane has no rules of its own.

Rests on attributes of `HttpToolsProtocol` that uvicorn does not promise: the lock file names the version it was tried with,
and tests/unit/test_express.py goes through what the two ways must agree on.
"""

from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from gateway.call import State
from gateway.connections import Connection
from gateway.dispatch import Dispatch, Express
from gateway.replies import Header, Reply

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_BUSY: Final = -1.0
_HEADS_KEPT: Final = 256
"""Combinations of status and headers whose text is remembered."""


class _NobodyWaits:
    """Stands where a cycle has the event that its task waits for."""

    def set(self) -> None:
        """Wake nobody."""


_NOBODY_WAITS: Final = _NobodyWaits()


class _Answer:
    """Stands where uvicorn has a cycle, from a call's last byte to its reply."""

    __slots__ = ("_connection", "disconnected", "keep_alive", "response_complete", "scope")

    message_event = _NOBODY_WAITS
    more_body = False
    response_started = False

    def __init__(self, connection: "ExpressConnection") -> None:
        self._connection = connection
        self.scope = connection.scope
        self.disconnected = False
        self.keep_alive = True
        self.response_complete = False

    def send(self, reply: Reply, request_id: bytes) -> None:
        """Send the whole reply in one piece, and let the connection go on."""
        self.response_complete = True
        if not (self.disconnected or self._connection.transport.is_closing()):
            self._connection.send_reply(reply, request_id, keep_alive=self.keep_alive)


_heads: Final[dict[tuple[int, tuple[Header, ...]], bytes]] = {}


def _head(status: int, headers: tuple[Header, ...]) -> bytes:
    head = _heads.get((status, headers))
    if head is None:
        head = STATUS_LINE[status] + b"".join(b"%b: %b\r\n" % header for header in headers)
        if len(_heads) < _HEADS_KEPT:
            _heads[status, headers] = head
    return head


class ExpressConnection(Connection):
    """One caller's connection. Its timer is set anew when it finds the connection busy, or idle for too short a time."""

    _idle_since = _BUSY
    """Loop time since which nobody has asked anything; _BUSY while a request is read or answered."""
    _express: Express | None = None
    """The ordinary call whose body is still coming."""
    _body = b""

    # --- what the parser says -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Read what came. A call that did not come in one piece goes the long way."""
        super().data_received(data)
        if self._express is not None and not (self._refused or self.transport.is_closing()):
            self._go_long_way()

    def on_message_begin(self) -> None:
        """Begin a request; its scope is made when it turns out to be needed."""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        # Until then something that is this request's alone.
        self.scope = cast("Any", {"type": "http"})

    def on_headers_complete(self) -> None:
        """Decide which way the request goes."""
        app, cycle = self.app, cast("RequestResponseCycle | None", self.cycle)
        # Somebody who does not read his answers, or is owed one, has to wait: uvicorn knows how.
        if isinstance(app, Dispatch) and (cycle is None or cycle.response_complete) and not self.flow.write_paused:
            parser = cast("Any", self.parser)
            if parser.get_http_version() == "1.1" and parser.should_keep_alive() and not parser.should_upgrade():
                self._body = b""
                state = cast("State", self.app_state)
                self._express = app.express(state, parser.get_method(), self.url, self.headers)
                if self._express is not None:
                    return
        self._take_long_way()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self._express is None:
            super().on_body(body)
        else:
            self._body = self._body + body if self._body else body

    def on_message_complete(self) -> None:
        """Submit an ordinary call."""
        express, before = self._express, self.cycle
        if express is None:
            super().on_message_complete()
            return
        answer = _Answer(self)
        self.cycle = cast("Any", answer)
        if express.submit(self._body, answer.send):
            self._express = None
            return
        self.cycle = before
        self._go_long_way()
        super().on_message_complete()

    def _head_is_complete(self) -> bool:
        return self._express is not None or super()._head_is_complete()

    # --- the long way -------------------------------------------------------------------------------------------------

    def _go_long_way(self) -> None:
        """Hand a call with what has come of its body to uvicorn."""
        self._express = None
        self._take_long_way()
        if self._body:
            super().on_body(self._body)

    def _take_long_way(self) -> None:
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()

    # --- answers ------------------------------------------------------------------------------------------------------

    def send_reply(self, reply: Reply, request_id: bytes, *, keep_alive: bool) -> None:
        """Write the reply to an ordinary call."""
        body = reply.body
        parts = [_head(reply.status, reply.headers)]
        parts += [b"%b: %b\r\n" % header for header in self.server_state.default_headers]
        parts.append(b"content-length: %d\r\nx-request-id: %b\r\n" % (len(body), request_id))
        parts += (b"\r\n" if keep_alive else b"connection: close\r\n\r\n", body)
        self.transport.write(b"".join(parts))
        if not keep_alive:
            self.transport.close()
        self.on_response_complete()

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

    # --- idle ---------------------------------------------------------------------------------------------------------

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
        self._express = None
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = _BUSY

    def _is_timed(self) -> bool:
        return self._idle_since != _BUSY

    def _set_timer(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)
