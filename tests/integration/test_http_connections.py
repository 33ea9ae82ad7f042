"""Connections as such: how many, how slow, and what an answer is worth when something else follows its request."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway import connections
from kernel import limits
from stockgate.servers import Servers
from tests.integration.http_world import HttpWorld, held_open

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONNECTIONS_MAX = 12
LIVE = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[HttpWorld]:
    directory: Path = tmp_path_factory.mktemp("http")
    with pytest.MonkeyPatch.context() as patch:
        # What takes ten seconds in earnest takes a moment here.
        patch.setattr(connections, "LOOK_S", 0.05)
        patch.setattr(limits, "HEAD_READ_MS_MAX", 400)
        patch.setattr(limits, "ANSWER_WRITE_MS_MAX", 400)
        async with held_open(servers, directory, http_connections_max=CONNECTIONS_MAX) as opened:
            yield opened


async def connect(world: HttpWorld) -> Streams:
    return await asyncio.open_connection("127.0.0.1", world.port)


async def rest(streams: Streams) -> bytes:
    """All that still comes, until the other side closes."""
    async with asyncio.timeout(30):
        answer = await streams[0].read()
    streams[1].close()
    return answer


async def one_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length
        return int(head.split()[1]), await reader.readexactly(int(length[1]))


def reserve(world: HttpWorld, key: str, order_id: str) -> bytes:
    body = json.dumps({"order_id": order_id, "lines": [{"inventory_key": key, "qty": 1}]}).encode()
    head = f"POST /v1/reservations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {world.keys['all']}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


# --- slow ones ------------------------------------------------------------------------------------------------------------


async def test_a_head_that_comes_too_slowly_is_told_so(world: HttpWorld) -> None:
    streams = await connect(world)
    streams[1].write(LIVE[:-2])
    answer = await rest(streams)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b'"code":"REQUEST_TIMEOUT"' in answer
    assert b"connection: close" in answer


async def test_a_head_that_comes_byte_by_byte_gains_no_time(world: HttpWorld) -> None:
    streams = await connect(world)

    async def drip() -> None:
        while not streams[1].is_closing():
            streams[1].write(b"X-A: b\r\n")
            await asyncio.sleep(0.02)

    streams[1].write(b"GET /health/live HTTP/1.1\r\n")
    dripping = asyncio.create_task(drip())
    try:
        assert (await one_answer(streams[0]))[0] == 408
    finally:
        dripping.cancel()
        streams[1].close()


@pytest.mark.parametrize("sent", [b"", b"\r\n\r\n"])
async def test_a_connection_on_which_nothing_comes_is_closed_without_a_word(world: HttpWorld, sent: bytes) -> None:
    streams = await connect(world)
    streams[1].write(sent)
    assert await rest(streams) == b""


async def test_a_line_feed_after_an_answer_keeps_no_connection_for_ever(world: HttpWorld) -> None:
    streams = await connect(world)
    streams[1].write(LIVE)
    assert (await one_answer(streams[0]))[0] == 200
    streams[1].write(b"\r\n")
    assert await rest(streams) == b""


async def test_an_idle_connection_may_wait_longer_than_a_head(world: HttpWorld) -> None:
    streams = await connect(world)
    for _ in range(2):
        streams[1].write(LIVE)
        assert (await one_answer(streams[0]))[0] == 200
        await asyncio.sleep(2 * limits.HEAD_READ_MS_MAX / 1000)
    streams[1].close()


async def test_a_caller_who_reads_no_answer_is_cut(world: HttpWorld) -> None:
    reader, writer = await connect(world)
    # Enough questions for answers that fill what both sides keep for a connection.
    writer.transport.pause_reading()  # pyright: ignore[reportAttributeAccessIssue]
    request = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 400

    async def ask_on() -> None:
        while True:
            writer.write(request)
            await writer.drain()

    async with asyncio.timeout(60):
        with pytest.raises(ConnectionError):
            await ask_on()
    del reader


# --- one thing after another ----------------------------------------------------------------------------------------------


async def test_what_follows_a_request_never_answers_for_it(world: HttpWorld) -> None:
    """A Content-Length that is too small makes the rest of the body a request: the order was made, and 201 is what is heard."""
    key = await world.stocked(5)
    order_id = world.fresh("order")
    streams = await connect(world)
    streams[1].write(reserve(world, key, order_id) + b'"}\r\n\r\nmore of it\r\n\r\n')
    answer = await rest(streams)
    assert answer.startswith(b"HTTP/1.1 201")
    assert b"MALFORMED_HTTP" not in answer
    assert await world.quantities(key) == (4, 1, 0, 0, 0)


async def test_a_body_that_breaks_off_is_no_call(world: HttpWorld) -> None:
    key = await world.stocked(5)
    streams = await connect(world)
    head = reserve(world, key, "never").partition(b"Content-Length")[0]
    streams[1].write(head + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"ord\r\nzz\r\n')
    answer = await rest(streams)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b'"code":"MALFORMED_HTTP"' in answer
    assert answer.count(b"HTTP/1.1") == 1
    assert await world.quantities(key) == (5, 0, 0, 0, 0)


async def test_a_broken_body_behind_another_request_is_answered_behind_it(world: HttpWorld) -> None:
    key = await world.stocked(5)
    streams = await connect(world)
    broken = reserve(world, key, "never").partition(b"Content-Length")[0]
    broken += b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"ord\r\nzz\r\n'
    streams[1].write(reserve(world, key, world.fresh("order")) + broken)
    answer = await rest(streams)
    assert re.findall(rb"HTTP/1.1 (\d+)", answer) == [b"201", b"400"]
    assert await world.quantities(key) == (4, 1, 0, 0, 0)


async def test_an_upgrade_that_is_offered_is_passed_over(world: HttpWorld) -> None:
    """Some clients offer HTTP/2 with every first request, and go on with HTTP/1.1 on the same connection."""
    key = await world.stocked(5)
    reader, writer = await connect(world)
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nHost: x"
    for request in (reserve(world, key, world.fresh("order")), LIVE, reserve(world, key, world.fresh("order"))):
        writer.write(request.replace(b"Host: x", offer))
        status, body = await one_answer(reader)
        assert status in {200, 201}, body
    writer.close()
    assert await world.quantities(key) == (3, 2, 0, 0, 0)


# --- many -----------------------------------------------------------------------------------------------------------------


async def opened(world: HttpWorld, count: int) -> list[Streams]:
    """Connections that have been answered once, so that the gateway counts them."""
    found = [await connect(world) for _ in range(count)]
    for reader, writer in found:
        writer.write(LIVE)
        assert (await one_answer(reader))[0] == 200
    return found


async def test_more_connections_than_allowed_hear_503_and_are_closed(world: HttpWorld) -> None:
    await world.http.aclose()
    world.http = type(world.http)(base_url=world.url, timeout=20, trust_env=False)
    key = "k"
    inside = await opened(world, CONNECTIONS_MAX)
    try:
        outside = await connect(world)
        outside[1].write(reserve(world, key, "one-too-many"))
        answer = await rest(outside)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"code":"UNAVAILABLE"' in answer
        assert b'"outcome":"not_executed"' in answer
        assert b"retry-after: 1" in answer
        # Whoever looks whether the process lives is answered, and those inside are not disturbed.
        probe = await connect(world)
        probe[1].write(LIVE)
        assert (await rest(probe)).startswith(b"HTTP/1.1 200")
        inside[0][1].write(LIVE)
        assert (await one_answer(inside[0][0]))[0] == 200
    finally:
        for _, writer in inside:
            writer.close()


async def test_far_more_connections_than_allowed_are_cut(world: HttpWorld) -> None:
    many = [await connect(world) for _ in range(4 * CONNECTIONS_MAX)]
    ends = [asyncio.create_task(reader.read()) for reader, _ in many]
    try:
        async with asyncio.timeout(30):
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert done
    finally:
        for _, writer in many:
            writer.close()
        for end in ends:
            end.cancel()
    await asyncio.gather(*ends, return_exceptions=True)
    async with asyncio.timeout(30):
        while (await world.http.get("/v1/reservations/x")).status_code == 503:
            await asyncio.sleep(0.05)
