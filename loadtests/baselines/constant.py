"""The limit of the HTTP server itself: read the body, answer a constant. A bare ASGI application."""

from collections.abc import Awaitable, Callable
from typing import Any

BODY = (
    b'{"order_id":"o","status":"RESERVED","lines":'
    b'[{"inventory_key":"k","qty":1,"status":"RESERVED","epoch":1,"seq":1}]}'
)
HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())]


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Answer 201 to everything."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
