"""The outermost ASGI application: finds the endpoint, checks who asks, and turns whatever comes of it into a reply.

Pure ASGI with nothing around it, because it is the hot path. The lifespan goes to the application inside.
"""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from itertools import count
from time import monotonic
from typing import Any, Final

from structlog.typing import FilteringBoundLogger

from gateway.body import Disconnected, Receive
from gateway.call import Call, Endpoint, State
from gateway.replies import Header, Reply, problem_reply, result_reply
from gateway.requests import InvalidBody, MalformedBody
from gateway.reservations import OneOperation
from gateway.routes import Routes
from inventory.batcher import Answer
from inventory.operations import Operation
from kernel import failpoints, limits
from kernel.errors import StockgateError, StoreUnavailable
from kernel.problems import Problem
from kernel.settings import Settings
from kernel.tallies import Tally, Timing

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_SANE_REQUEST_ID: Final = re.compile(rb"[!-~]{1,64}").fullmatch
_TRACEPARENT: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch


SendReply = Callable[[Reply, bytes], None]

_EXTRAORDINARY: Final = frozenset({b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"})
"""Headers that the express lane leaves to the long way."""

REFUSALS: Final = (Problem, InvalidBody, MalformedBody)
"""What a handler raises to refuse: everything else is a failure."""


def _trace_id(traceparent: bytes | None) -> str:
    trace = None if traceparent is None else _TRACEPARENT(traceparent)
    return trace[1].decode() if trace else ""


async def _no_more() -> Message:
    """What a call receives whose body was read before it began."""
    return {"type": "http.request", "body": b"", "more_body": False}


def _for_operators(endpoint: Endpoint) -> bool:
    return endpoint.template.startswith("/ops/") or endpoint.template == "/metrics"


class Dispatch:
    """The gateway's ASGI application. `inner` takes what is no call: the lifespan."""

    def __init__(
        self, endpoints: Sequence[Endpoint], inner: App, settings: Settings, log: FilteringBoundLogger
    ) -> None:
        endpoints = tuple(endpoints)
        self._routes = Routes(endpoints)
        self._public_routes = Routes(one for one in endpoints if not _for_operators(one))
        self._operators_port: int | None = None
        self._open_paths = frozenset(endpoint.template.encode() for endpoint in endpoints if not endpoint.scopes)
        self._inner = inner
        self._log = log
        self._in_flight_max = settings.http_connections_max
        self._in_flight = 0
        self._request_ids = (b"%s-%x" % (prefix, n) for prefix in [secrets.token_hex(6).encode()] for n in count(1))
        self._counters: dict[tuple[str, int], tuple[Tally, Timing]] = {}
        self._ordinary = {
            endpoint.template.encode(): (endpoint, endpoint.handle)
            for endpoint in endpoints
            if endpoint.method == "POST" and isinstance(endpoint.handle, OneOperation)
        }

    def express(
        self, state: State, method: bytes, url: bytes, headers: Sequence[tuple[bytes, bytes]]
    ) -> "Express | None":
        """The call that a request's head begins, if it is an ordinary one: see `gateway.express`."""
        found = self._find_ordinary(url) if method == b"POST" and self._in_flight < self._in_flight_max else None
        if found is None or len(headers) > limits.HEADERS_MAX:
            return None
        endpoint, handler, names = found
        authorization = request_id = traceparent = None
        for name, value in headers:
            if name == b"authorization":
                authorization = value
            elif name == b"x-request-id":
                request_id = value
            elif name == b"traceparent":
                traceparent = value
            elif name in _EXTRAORDINARY:
                return None
        principal = None if authorization is None else state["keys"].recognise(authorization)
        if principal is None or principal.prefix or endpoint.scopes.isdisjoint(principal.scopes):
            return None
        call = Call(state, _no_more, endpoint, names)
        call.principal = principal
        call.trace_id = _trace_id(traceparent)
        return Express(self, call, handler, self._named_by(request_id))

    def _find_ordinary(self, url: bytes) -> tuple[Endpoint, OneOperation, tuple[str, ...]] | None:
        ordinary = self._ordinary.get(url)
        if ordinary is not None:
            return (*ordinary, ())
        if b"?" in url or b"#" in url:
            return None
        try:
            found = self._routes.find("POST", url)
        except REFUSALS:
            return None
        if found is None or not isinstance(handler := found[0].handle, OneOperation):
            return None
        return found[0], handler, found[1]

    def _named_by(self, request_id: bytes | None) -> bytes:
        """The caller's request id if it sent a sane one, otherwise one of ours."""
        return request_id if request_id is not None and _SANE_REQUEST_ID(request_id) else next(self._request_ids)

    def keep_apart(self, *, public_port: int, operators_port: int) -> None:
        """Answer what is for operators only to connections that were accepted on their port.

        Raises ValueError where both ports are the same: a connection could not be told from another.
        """
        if public_port == operators_port:
            raise ValueError(f"operators need a port of their own: {operators_port} is the gateway's")
        self._operators_port = operators_port

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP call, or hand on what is not ours."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        if len(scope["headers"]) > limits.HEADERS_MAX:
            problem = Problem("HEAD_TOO_LARGE", f"a request may have {limits.HEADERS_MAX} headers")
            await self._refuse(problem, scope["state"], send)
            return
        self._in_flight += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self._in_flight -= 1

    async def crowded(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a call on a connection that is one too many: what needs no key is served, and then it is closed."""

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        if scope["raw_path"] in self._open_paths:
            await self(scope, receive, send_and_close)
            return
        problem = Problem("UNAVAILABLE", "too many connections", outcome="not_executed")
        await self._refuse(problem, scope["state"], send_and_close)

    async def _refuse(self, problem: Problem, state: State, send: Send) -> None:
        """Refuse a call that nobody has looked at."""
        request_id = next(self._request_ids)
        await self._send(send, problem_reply(problem, request_id.decode()), request_id, "unknown", state, monotonic())

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        began = monotonic()
        state: State = scope["state"]
        authorization = request_id = traceparent = announced = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value
            elif name == b"content-length":
                announced = value
            elif name == b"x-request-id":
                request_id = value
            elif name == b"traceparent":
                traceparent = value
        request_id = self._named_by(request_id)
        route = "unknown"
        try:
            routes = self._routes if self._operators_port is None else self._routes_of(scope)
            found = routes.find(scope["method"], scope["raw_path"])
            if found is None:
                raise Problem("NOT_FOUND", "no call has this path")
            endpoint, names = found
            route = endpoint.template
            call = Call(state, receive, endpoint, names)
            call.request_id = request_id.decode()
            call.announced = announced
            call.headers = scope["headers"]
            call.query = scope["query_string"]
            call.trace_id = _trace_id(traceparent)
            if endpoint.scopes:
                if self._in_flight > self._in_flight_max:
                    raise Problem("UNAVAILABLE", "too many requests at once", outcome="not_executed")
                principal = call.principal = state["keys"].authenticate(authorization)
                if endpoint.scopes.isdisjoint(principal.scopes):
                    raise Problem("FORBIDDEN", f"needs one of the scopes {', '.join(sorted(endpoint.scopes))}")
            reply = await endpoint.handle(call)
        except Disconnected:
            return
        except asyncio.CancelledError:
            # The shutdown's patience is over. What was submitted may have been decided: say so, then go.
            state["lifecycle"].cut_short += 1
            reply = problem_reply(Problem("UNAVAILABLE", "shutting down", outcome="unknown"), request_id.decode())
            await self._send(send, reply, request_id, route, state, began)
            raise
        except Exception as error:  # noqa: BLE001 - the last place that can still answer the caller
            reply = self._failure(error, request_id.decode(), route)
        failpoints.hit("gateway.before_answer")
        await self._send(send, reply, request_id, route, state, began)

    def begin(self) -> None:
        """Count a call that `end` will answer."""
        self._in_flight += 1

    def end(self, call: Call, began: float, request_id: bytes, operation: Operation, answer: Answer) -> Reply:
        """The reply to a call of the express lane; never raises."""
        self._in_flight -= 1
        route = call.endpoint.template
        try:
            reply = result_reply(operation, answer.results[0], answer)
        except Exception as error:  # noqa: BLE001 - the last place that can still answer the caller
            reply = self._failure(error, request_id.decode(), route)
        failpoints.hit("gateway.before_answer")
        self._count(route, reply.status, call.state, began)
        return reply

    def _routes_of(self, scope: MutableMapping[str, Any]) -> Routes:
        return self._routes if scope["server"][1] == self._operators_port else self._public_routes

    def _failure(self, error: Exception, request_id: str, route: str) -> Reply:
        problem = problem_of(error)
        if problem is None:
            self._log.exception("request_failed", request_id=request_id, route=route, exc_info=error)
            problem = Problem("INTERNAL_ERROR", "see the log under this request id", outcome="unknown")
        elif problem.status >= 500:
            self._log.warning(
                "request_not_served",
                request_id=request_id,
                route=route,
                code=problem.code,
                detail=problem.detail,
                outcome=problem.extra.get("outcome"),
            )
        return problem_reply(problem, request_id)

    def _count(self, route: str, status: int, state: State, began: float) -> None:
        kept = self._counters.get((route, status))
        if kept is None:
            metrics = state["metrics"]
            kept = metrics.http_requests_total.labels(route, str(status)), metrics.http_request_seconds.labels(route)
            self._counters[route, status] = kept
        kept[0].inc()
        kept[1].observe(monotonic() - began)

    async def _send(self, send: Send, reply: Reply, request_id: bytes, route: str, state: State, began: float) -> None:
        self._count(route, reply.status, state, began)
        headers: list[Header] = [
            (b"content-length", b"%d" % len(reply.body)),
            (b"x-request-id", request_id),
            *reply.headers,
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})


class Express:
    """A call of one operation, from its head to its answer."""

    __slots__ = ("_began", "_call", "_dispatch", "_operation", "_plan", "_request_id", "_send")

    def __init__(self, dispatch: Dispatch, call: Call, handler: OneOperation, request_id: bytes) -> None:
        self._began = monotonic()
        self._dispatch = dispatch
        self._call = call
        self._plan = handler.plan
        self._request_id = request_id

    def submit(self, body: bytes, send: SendReply) -> bool:
        """Submit the operation; `send` gets the reply and the request's id. False: nothing was done, take the long way."""
        call = self._call
        if len(body) > call.endpoint.body_bytes_max:
            return False
        try:
            self._operation = self._plan(call, body)
        except Exception:  # noqa: BLE001 - it is raised again, and answered, on the long way
            return False
        self._send = send
        self._dispatch.begin()
        call.state["batcher"].put((self._operation,), self._answered)
        return True

    def _answered(self, answer: Answer) -> None:
        operation = self._operation
        reply = self._dispatch.end(self._call, self._began, self._request_id, operation, answer)
        self._send(reply, self._request_id)


def problem_of(error: Exception) -> Problem | None:
    """What a failure is to the caller; None for one that nobody foresaw."""
    match error:
        case Problem():
            return error
        case InvalidBody():
            errors = [{"path": one.path, "message": one.message} for one in error.errors]
            return Problem("INVALID_REQUEST", str(error), errors=errors)
        case MalformedBody():
            return Problem("MALFORMED_JSON", str(error))
        case StoreUnavailable():
            return Problem("UNAVAILABLE", f"{error.store} cannot be asked", outcome=error.outcome)
        case StockgateError():
            return None
        case _:
            return None
