"""The gateway's HTTP connections over TCP, with an application that does nothing: whole replies, order, idleness."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn

from gateway.main import GatewayServer
from gateway.protocol import REPLY, GatewayProtocol

Message = MutableMapping[str, Any]
IDLE_S = 0.3
HEADERS = [(b"content-length", b"2"), (b"x-request-id", b"r")]


@dataclass
class App:
    """Answers every request with `ok`, by the extension where there is one; keeps what it saw."""

    slow: asyncio.Event = field(default_factory=asyncio.Event)
    seen: list[tuple[str, str, bytes, bool]] = field(default_factory=list[tuple[str, str, bytes, bool]])
    whole: list[bool] = field(default_factory=list[bool])

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        extensions: dict[str, Any] = scope.pop("extensions", {})
        self.seen.append((scope["method"], scope["path"], scope["query_string"], REPLY in extensions))
        while (await receive()).get("more_body"):
            pass
        if scope["path"] == "/slow":
            await self.slow.wait()
        body = scope["path"][-2:].encode()
        self.whole.append(REPLY in extensions and extensions[REPLY](201, HEADERS, body))
        if not self.whole[-1]:
            await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
            await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def connected(app: App) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client's connection to a server with the gateway's protocol."""
    config = uvicorn.Config(
        app,
        http=GatewayProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        host="127.0.0.1",
        port=0,
        timeout_keep_alive=IDLE_S,  # type: ignore[arg-type]  # whole seconds are all that it documents
    )
    server = GatewayServer(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve())
        async with asyncio.timeout(5):
            while not server.started:
                await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, list[bytes], bytes]:
    """Status line, header lines and a body of two bytes."""
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        status, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        return status, headers, await reader.readexactly(2)


async def test_a_plain_request_is_answered_in_one_piece_and_the_connection_stays() -> None:
    app = App()
    async with connected(app) as (reader, writer):
        for _ in range(3):
            writer.write(b"POST /v1/ok HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc")
            status, headers, body = await answer(reader)
            assert (status, body) == (b"HTTP/1.1 201 Created", b"ok")
            assert headers[-2:] == [b"content-length: 2", b"x-request-id: r"]
            assert headers[0].startswith(b"date: ")
    assert app.seen == [("POST", "/v1/ok", b"", True)] * 3
    assert app.whole == [True] * 3


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [(b"/ok?a=1", "/ok", b"a=1"), (b"/a%2Fok", "/a/ok", b""), (b"/sku@ok", "/sku@ok", b""), (b"//ok", "//ok", b"")],
)
async def test_other_paths_are_the_servers_matter(target: bytes, path: str, query: bytes) -> None:
    app = App()
    async with connected(app) as (reader, writer):
        writer.write(b"GET " + target + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        status, _, body = await answer(reader)
    assert (status, body) == (b"HTTP/1.1 201 Created", b"ok")
    assert app.seen == [("GET", path, query, False)]


@pytest.mark.parametrize("head", [b"GET /ok HTTP/1.1\r\nConnection: close\r\n", b"GET /ok HTTP/1.0\r\n"])
async def test_who_wants_one_answer_only_gets_it_and_the_end(head: bytes) -> None:
    async with connected(App()) as (reader, writer):
        writer.write(head + b"Host: h\r\n\r\n")
        _, headers, _ = await answer(reader)
        assert b"connection: close" in headers
        async with asyncio.timeout(5):
            assert await reader.read() == b""


async def test_a_head_request_gets_no_body() -> None:
    app = App()
    async with connected(app) as (reader, writer):
        writer.write(b"HEAD /ok HTTP/1.1\r\nHost: h\r\n\r\nGET /ok HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 201 ")
        assert (await answer(reader))[2] == b"ok"
    assert app.whole == [False, True]


async def test_pipelined_requests_are_answered_in_their_order() -> None:
    app = App()
    async with connected(app) as (reader, writer):
        writer.write(b"".join(b"GET /%b HTTP/1.1\r\nHost: h\r\n\r\n" % name for name in (b"slow", b"aa", b"bb")))
        await asyncio.sleep(0.05)
        app.slow.set()
        assert [(await answer(reader))[2] for _ in range(3)] == [b"ow", b"aa", b"bb"]


async def test_a_late_body_is_waited_for() -> None:
    app = App()
    async with connected(app) as (reader, writer):
        writer.write(b"POST /ok HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        async with asyncio.timeout(5):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await answer(reader))[2] == b"ok"


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    app = App()
    async with connected(app) as (reader, writer):
        loop = asyncio.get_running_loop()
        # Each pause is shorter than the limit, all together are longer.
        for _ in range(4):
            writer.write(b"GET /ok HTTP/1.1\r\nHost: h\r\n\r\n")
            await answer(reader)
            await asyncio.sleep(IDLE_S / 2)
        writer.write(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.sleep(2 * IDLE_S)
        app.slow.set()
        assert (await answer(reader))[2] == b"ow"
        idle_since = loop.time()
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        assert IDLE_S * 0.8 < loop.time() - idle_since < IDLE_S + 1.0


async def test_a_caller_that_hangs_up_is_not_answered() -> None:
    app = App()
    async with connected(app) as (_, writer):
        writer.write(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.close()
        await asyncio.sleep(0.05)
        app.slow.set()
        async with asyncio.timeout(5):
            while not app.whole:
                await asyncio.sleep(0.005)
    assert app.whole == [True]
