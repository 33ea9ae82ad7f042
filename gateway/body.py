"""Reads a request's body, with a bound on its bytes and on its time."""

import asyncio
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from typing import Any, Final

from kernel.problems import Problem

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]


NOTHING: Final[Message] = {}


class Disconnected(Exception):
    """The caller hung up before its request was complete: nothing was done and nobody hears an answer."""


async def read_body(receive: Receive, bytes_max: int, seconds_max: float, announced: bytes | None) -> bytes:
    """Return the whole body; raises Problem (413 over `bytes_max`, 408 after `seconds_max`) and Disconnected.

    `announced` is the Content-Length header: a body that says it is too large is not read at all.
    """
    if announced is not None and len(announced) < 20 and announced.isdigit() and int(announced) > bytes_max:
        raise _too_large(bytes_max)
    steps = receive().__await__()
    # Nearly every body has come with its head. Only one that has not is worth a timer, which costs more than the rest.
    try:
        waited = next(steps)
    except StopIteration as arrived:
        message: Message = arrived.value
        if not message.get("more_body", False):
            return _bytes_of(message, bytes_max)
        begun = None
    else:
        message, begun = NOTHING, _Begun(steps, waited)
    try:
        async with asyncio.timeout(seconds_max):
            return await _collect(receive, message if begun is None else await begun, bytes_max)
    except TimeoutError:
        raise Problem("REQUEST_TIMEOUT", f"the body did not arrive within {seconds_max:g} s") from None


class _Begun:
    """Goes on with an awaitable whose first step was taken by hand and waits for `waited`."""

    def __init__(self, steps: Generator[Any, Any, Message], waited: Any) -> None:
        self._steps = steps
        self._waited = waited

    def __await__(self) -> Generator[Any, Any, Message]:
        try:
            yield self._waited
        except BaseException:
            self._steps.close()
            raise
        return (yield from self._steps)


async def _collect(receive: Receive, message: Message, bytes_max: int) -> bytes:
    """The pieces in one; counted while they come, so that a body that never ends stops at the bound."""
    pieces = [_bytes_of(message, bytes_max)]
    size = len(pieces[0])
    while message.get("more_body", False):
        message = await receive()
        pieces.append(_bytes_of(message, bytes_max))
        size += len(pieces[-1])
        if size > bytes_max:
            raise _too_large(bytes_max)
    return b"".join(pieces)


def _bytes_of(message: Message, bytes_max: int) -> bytes:
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    return body


def _too_large(bytes_max: int) -> Problem:
    return Problem("BODY_TOO_LARGE", f"the body may have {bytes_max} bytes at most")
