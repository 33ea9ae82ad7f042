"""Reads a request's body, with a bound on its bytes and on its time."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from kernel.problems import Problem

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Disconnected(Exception):
    """The caller hung up before its request was complete: nothing was done and nobody hears an answer."""


async def read_body(receive: Receive, bytes_max: int, seconds_max: float, announced: bytes | None) -> bytes:
    """Return the whole body; raises Problem (413 over `bytes_max`, 408 after `seconds_max`) and Disconnected.

    `announced` is the Content-Length header: a body that says it is too large is not read at all.
    """
    if announced is not None and len(announced) < 20 and announced.isdigit() and int(announced) > bytes_max:
        raise _too_large(bytes_max)
    try:
        async with asyncio.timeout(seconds_max):
            return await _read(receive, bytes_max)
    except TimeoutError:
        raise Problem("REQUEST_TIMEOUT", f"the body did not arrive within {seconds_max:g} s") from None


async def _read(receive: Receive, bytes_max: int) -> bytes:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body
    # A body in pieces is counted while it comes: one that never ends stops at the bound.
    pieces = [body]
    size = len(body)
    while message.get("more_body", False):
        if size > bytes_max:
            raise _too_large(bytes_max)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
    if size > bytes_max:
        raise _too_large(bytes_max)
    return b"".join(pieces)


def _too_large(bytes_max: int) -> Problem:
    return Problem("BODY_TOO_LARGE", f"the body may have {bytes_max} bytes at most")
