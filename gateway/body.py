"""Reads a request's body, with a bound on its bytes and on its time."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from typing import Any

from kernel.problems import Problem

Message = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Message]]


class Disconnected(Exception):
    """The caller hung up before its request was complete: nothing was done and nobody hears an answer."""


async def read_body(receive: Receive, bytes_max: int, seconds_max: float, announced: bytes | None) -> bytes:
    """Return the whole body; raises Problem (413 over `bytes_max`, 408 after `seconds_max`) and Disconnected.

    `announced` is the Content-Length header: a body that says it is too large is not read at all.
    """
    if announced is not None and len(announced) < 20 and announced.isdigit() and int(announced) > bytes_max:
        raise _too_large(bytes_max)
    reading = receive()
    # Nearly every body has come with its head. Only one that has not is worth a timer, which costs more than the rest.
    try:
        waited = reading.send(None)
    except StopIteration as arrived:
        message: Message = arrived.value
        if not message.get("more_body", False):
            return _whole(message, bytes_max)
        pieces, waiting = [message], None
    else:
        pieces, waiting = [], _continued(reading, waited)
    try:
        async with asyncio.timeout(seconds_max):
            return await _collected(receive, pieces, waiting, bytes_max)
    except TimeoutError:
        raise Problem("REQUEST_TIMEOUT", f"the body did not arrive within {seconds_max:g} s") from None


def _whole(message: Message, bytes_max: int) -> bytes:
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    return body


async def _collected(
    receive: Receive, pieces: list[Message], waiting: Awaitable[Message] | None, bytes_max: int
) -> bytes:
    """The pieces in one; counted while they come, so that a body that never ends stops at the bound."""
    if waiting is not None:
        pieces.append(await waiting)
    body = [_whole(piece, bytes_max) for piece in pieces]
    size = sum(map(len, body))
    while pieces[-1].get("more_body", False):
        pieces[-1] = await receive()
        body.append(_whole(pieces[-1], bytes_max))
        size += len(body[-1])
        if size > bytes_max:
            raise _too_large(bytes_max)
    return b"".join(body)


class _Handed:
    """Awaiting it hands to the event loop what a coroutine that was begun by hand has yielded."""

    def __init__(self, waited: Any) -> None:
        self._waited = waited

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._waited


async def _continued(reading: Coroutine[Any, Any, Message], waited: Any) -> Message:
    """Go on with a coroutine that was begun by hand and waits."""
    try:
        await _Handed(waited)
    except BaseException:
        reading.close()
        raise
    return await reading


def _too_large(bytes_max: int) -> Problem:
    return Problem("BODY_TOO_LARGE", f"the body may have {bytes_max} bytes at most")
