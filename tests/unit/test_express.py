"""The express lane and the long way: what they must agree on, and what only the long way may answer."""

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from gateway.app import create_app
from gateway.call import Lifecycle, State
from gateway.express import ExpressConnection
from inventory.batcher import Answer
from inventory.hot_path import Failure
from inventory.operations import Operation, Result
from inventory.outcomes import Outcome
from kernel.auth import KeyRing
from kernel.metrics import Metrics
from kernel.settings import Settings

ORDER = [1_800_000_000_000, "", [["k", 1, 1, "", 3, 7]]]
RESERVE = b'{"order_id":"o","lines":[{"inventory_key":"k","qty":1}]}'
DATE = b"Tue, 01 Dec 2026 00:00:00 GMT"


def key(name: str, **more: Any) -> dict[str, Any]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "tenant": "t", "scopes": ["orders"], "sha256": digest, **more}


class Transport:
    """Keeps what is written, and says of itself what it is told."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.reading = True

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def close(self) -> None:
        self.closed = True

    def write_eof(self) -> None:
        self.closed = True

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_extra_info(self, _name: str) -> None:
        return None


class Batcher:
    """Decides when the test says so. `put` is the express lane's, `submit` the long way's."""

    def __init__(self) -> None:
        self.results: list[Result | Failure] = [Result(Outcome.DONE, detail=ORDER)]
        self.held: list[Callable[[], None]] | None = None
        self.ways: list[str] = []

    def answer(self) -> Answer:
        return Answer(list(self.results), 3, "broker", 1_799_999_000_000)

    def put(self, _ops: Sequence[Operation], tell: Callable[[Answer], None]) -> None:
        self.ways.append("express")
        if self.held is None:
            tell(self.answer())
        else:
            self.held.append(lambda: tell(self.answer()))

    async def submit(self, _ops: Sequence[Operation]) -> Answer:
        self.ways.append("long")
        if self.held is not None:
            told = asyncio.Event()
            self.held.append(told.set)
            await told.wait()
        return self.answer()

    def release(self) -> None:
        held, self.held = self.held or [], None
        for tell in held:
            tell()


class Server:
    """The gateway's connections over transports of the test's own."""

    def __init__(self, directory: Path, **changed: Any) -> None:
        keys = directory / "keys.json"
        entries = [key("plain"), key("limited", rate_per_s=100), key("prefixed", prefix="k"), key("late")]
        entries[3]["expires_at"] = "2020-01-01T00:00:00Z"
        keys.write_text(json.dumps([*entries, {**key("foreign"), "scopes": ["inventory"]}]))
        settings = Settings(api_keys_file=keys, **changed)
        self.batcher = Batcher()
        self.state = ServerState()
        self.state.default_headers = [(b"date", DATE)]
        app_state = {
            "settings": settings,
            "keys": KeyRing.load(settings),
            "batcher": self.batcher,
            "metrics": Metrics(),
        }
        app = create_app(settings, Lifecycle())
        config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False)
        config.load()
        self._make = partial(
            ExpressConnection,
            config,
            self.state,
            cast("Any", cast("State", app_state)),
            connections_max=settings.http_connections_max,
            crowded=app.crowded,
        )

    def connect(self) -> tuple[ExpressConnection, Transport]:
        connection, transport = self._make(asyncio.get_running_loop()), Transport()
        connection.connection_made(cast("Any", transport))
        return connection, transport

    async def ask(self, *pieces: bytes, express: bool = True) -> Transport:
        """What comes back for bytes that come in these pieces."""
        connection, transport = self.connect()
        if not express:
            # The same application, but nothing that has a lane.
            connection.app = cast("Any", connection.app.__call__)
        for piece in pieces:
            if not transport.closed:
                connection.data_received(piece)
            await settled()
        connection.connection_lost(None)
        await settled()
        return transport


async def settled() -> None:
    """Let every task run until it waits for somebody else."""
    for _ in range(20):
        await asyncio.sleep(0)


def request(
    body: bytes = RESERVE,
    *,
    path: str = "/v1/reservations",
    method: str = "POST",
    bearer: str | None = "plain",
    version: str = "1.1",
    headers: Sequence[str] = (),
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: here", f"Content-Length: {len(body)}", *headers]
    if bearer is not None:
        lines.append(f"Authorization: Bearer {bearer}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def comparable(written: bytes) -> bytes:
    """Without what may differ: the request's id, which stands in a problem too, the order of headers, a 100."""
    written = written.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    head, _, body = written.partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    kept = sorted(line for line in lines if not line.startswith((b"x-request-id", b"content-length")))
    return b"\n".join([status, *kept, re.sub(rb'"instance":"[^"]*"', b"", body)])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    assert not made.state.connections


SETTLE = "/v1/reservations/o%2F1/confirm"
ALIKE: dict[str, bytes] = {
    "reserve": request(),
    "confirm": request(b"{}", path=SETTLE),
    "confirm without a body": request(b"", path=SETTLE),
    "release": request(b'{"reason":"cancelled"}', path="/v1/reservations/o/release"),
    "its own request id": request(headers=["X-Request-Id: mine"]),
    "traced": request(headers=["traceparent: 00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"]),
    "no json": request(b"{"),
    "not what it takes": request(b'{"order_id":"o","lines":[]}'),
    "a name twice": request(b'{"order_id":"o","order_id":"p","lines":[{"inventory_key":"k","qty":1}]}'),
    "too large": request(b" " * 300_000),
    "no key": request(bearer=None),
    "a wrong key": request(bearer="nobody"),
    "an expired key": request(bearer="late"),
    "a key without the scope": request(bearer="foreign"),
    "a key with a limit": request(bearer="limited"),
    "a key with a prefix": request(bearer="prefixed"),
    "a query": request(path="/v1/reservations?x=1"),
    "an unknown path": request(path="/v1/nothing"),
    "a wrong method": request(method="PUT"),
    "an id that is none": request(b"{}", path="/v1/reservations/a%20b/confirm"),
    "an id beyond ASCII": request(b"{}", path="/v1/reservations/%C3%A9/confirm"),
    "a read": request(b"", method="GET", path="/v1/reservations/o"),
    "compressed": request(headers=["Content-Encoding: gzip"]),
    "closing": request(headers=["Connection: close"]),
    "an old version": request(version="1.0"),
    "an upgrade": request(headers=["Connection: upgrade", "Upgrade: h2c"]),
    "too many headers": request(headers=[f"X-{number}: 1" for number in range(80)]),
    "asks before it sends": request(headers=["Expect: 100-continue"]),
}
ORDINARY = {"reserve", "confirm", "confirm without a body", "release", "its own request id", "traced"}


@pytest.mark.parametrize("name", ALIKE)
async def test_both_ways_answer_alike(server: Server, name: str) -> None:
    """In one piece it may take the express lane; byte by byte, and without the lane, everything is answered the same."""
    sent = ALIKE[name]
    whole = await server.ask(sent)
    assert ("express" in server.batcher.ways) is (name in ORDINARY)
    server.batcher.ways.clear()
    without = await server.ask(sent, express=False)
    assert set(server.batcher.ways) <= {"long"}
    pieces = [sent[at : at + 1] for at in range(len(sent))] if len(sent) < 10_000 else [sent[:300], sent[300:]]
    in_pieces = await server.ask(*pieces)
    assert whole.written
    assert comparable(whole.written) == comparable(without.written)
    assert whole.closed == without.closed
    if name != "an upgrade":  # what a parser that was offered one makes of a body depends on the pieces, lane or not
        assert comparable(whole.written) == comparable(in_pieces.written)
        assert whole.closed == in_pieces.closed


@pytest.mark.parametrize(
    "result",
    [
        Result(Outcome.DONE, replay=1, detail=ORDER),
        Result(Outcome.INSUFFICIENT_STOCK, detail=[["k", 2, 1]]),
        Result(Outcome.ORDER_CONFLICT, detail=ORDER),
        Result(Outcome.KEY_FROZEN, detail=["k"]),
        Failure("UNAVAILABLE", "unknown", "no answer"),
        Result(Outcome.DONE, detail="damaged"),
    ],
)
async def test_both_ways_tell_a_decision_alike(server: Server, result: Result | Failure) -> None:
    server.batcher.results = [result]
    sent = request()
    whole = await server.ask(sent)
    without = await server.ask(sent, express=False)
    assert server.batcher.ways == ["express", "long"]
    assert comparable(whole.written) == comparable(without.written)
    assert b"content-length: " in whole.written
    assert b"x-request-id: " in whole.written


async def test_a_body_behind_its_head_goes_the_long_way(server: Server) -> None:
    sent = request()
    head = len(sent) - len(RESERVE)
    for cut in (head, head + 1, len(sent) - 1):
        transport = await server.ask(sent[:cut], sent[cut:])
        assert transport.written.startswith(b"HTTP/1.1 201 ")
    assert server.batcher.ways == ["long"] * 3


async def test_pipelined_requests_are_answered_in_their_order(server: Server) -> None:
    server.batcher.held = []
    connection, transport = server.connect()
    ids = [b"first", b"second", b"third"]
    connection.data_received(b"".join(request(headers=[f"X-Request-Id: {each.decode()}"]) for each in ids))
    await settled()
    # Only the first has begun; the others wait for it.
    assert server.batcher.ways == ["express"]
    assert not transport.reading
    server.batcher.release()
    await settled()
    assert re.findall(rb"x-request-id: (\w+)", transport.written) == ids
    assert transport.reading
    # And the connection takes the express lane again.
    connection.data_received(request())
    assert server.batcher.ways[-1] == "express"
    assert transport.written.count(b"HTTP/1.1 201 ") == 4
    connection.connection_lost(None)


async def test_two_requests_in_one_piece_where_the_first_is_answered_at_once(server: Server) -> None:
    transport = await server.ask(request() + request())
    assert server.batcher.ways == ["express", "express"]
    assert transport.written.count(b"HTTP/1.1 201 ") == 2


async def test_the_end_of_the_process_waits_for_the_answer_and_closes(server: Server) -> None:
    server.batcher.held = []
    connection, transport = server.connect()
    connection.data_received(request())
    connection.shutdown()
    assert not transport.closed
    server.batcher.release()
    assert transport.closed
    assert b"connection: close\r\n" in transport.written
    assert transport.written.startswith(b"HTTP/1.1 201 ")
    connection.connection_lost(None)
    assert connection not in server.state.connections


async def test_an_idle_connection_is_closed_at_the_end_of_the_process(server: Server) -> None:
    connection, transport = server.connect()
    connection.data_received(request())
    connection.shutdown()
    assert transport.closed
    connection.connection_lost(None)


async def test_who_hung_up_is_told_nothing_and_hurts_nobody(server: Server) -> None:
    server.batcher.held = []
    connection, transport = server.connect()
    connection.data_received(request())
    connection.connection_lost(None)
    server.batcher.release()
    assert not transport.written
    later, its_transport = server.connect()
    later.data_received(request())
    assert its_transport.written.startswith(b"HTTP/1.1 201 ")
    later.connection_lost(None)


async def test_who_does_not_read_waits_on_the_long_way(server: Server) -> None:
    connection, transport = server.connect()
    connection.pause_writing()
    connection.data_received(request())
    await settled()
    assert server.batcher.ways == ["long"]
    assert not transport.written
    connection.resume_writing()
    await settled()
    assert transport.written.startswith(b"HTTP/1.1 201 ")
    connection.connection_lost(None)


async def test_too_many_at_once_are_refused_on_the_long_way(tmp_path: Path) -> None:
    server = Server(tmp_path, http_connections_max=2)
    server.batcher.held = []
    first, _ = server.connect()
    second, _ = server.connect()
    first.data_received(request())
    second.data_received(request())
    third, transport = server.connect()
    third.data_received(request())
    await settled()
    assert transport.written.startswith(b"HTTP/1.1 503 ")
    server.batcher.release()
    for connection in (first, second, third):
        connection.connection_lost(None)


async def test_an_idle_connection_is_closed_after_its_time_and_a_busy_one_is_not(server: Server) -> None:
    server.batcher.held = []
    connection, transport = server.connect()
    connection.data_received(request())
    connection.timeout_keep_alive_handler()
    assert not transport.closed
    server.batcher.release()
    assert connection.timeout_keep_alive_task is not None
    connection.timeout_keep_alive_task.cancel()
    # It fires early: the time counts from the last answer.
    connection.timeout_keep_alive_handler()
    assert not transport.closed
    connection.timeout_keep_alive = 0
    connection.timeout_keep_alive_handler()
    assert transport.closed
    connection.connection_lost(None)


async def test_what_is_no_http_is_refused_after_an_ordinary_call_too(server: Server) -> None:
    transport = await server.ask(request(), b"GARBAGE\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 201 ")
    assert b"HTTP/1.1 400 " in transport.written
    assert transport.closed
