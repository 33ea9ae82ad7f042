"""A client as lean as the wire allows: a crowd of callers on the same two cores must not be what is measured."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WireReply:
    """A reply as it came; header names are lower case."""

    status_code: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    def json(self) -> Any:
        return json.loads(self.body)


_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Wire:
    """Kept HTTP/1.1 connections, one for each call in flight. Nothing is sent twice."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._idle: dict[int, list[_Connection]] = {}

    async def call(
        self, method: str, port: int, path: str, headers: dict[str, str], body: object | None = None
    ) -> WireReply:
        """One call to a port of this machine. Raises ConnectionError and TimeoutError: whether it had an effect is unknown."""
        content = b"" if body is None else json.dumps(body).encode()
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        async with asyncio.timeout(self._timeout_s):
            connection = await self._connection(port)
            try:
                reply = await _exchange(connection, "\r\n".join(head).encode() + b"\r\n\r\n" + content)
            except BaseException as failure:
                connection[1].transport.abort()
                if isinstance(failure, EOFError):
                    raise ConnectionResetError(f"no whole reply to {method} {path}") from failure
                raise
        if reply.headers.get("connection") == "close":
            connection[1].transport.abort()
        else:
            self._idle.setdefault(port, []).append(connection)
        return reply

    def close(self) -> None:
        for connections in self._idle.values():
            for _, writer in connections:
                writer.transport.abort()
        self._idle.clear()

    async def _connection(self, port: int) -> _Connection:
        idle = self._idle.get(port, [])
        while idle:
            reader, writer = idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.transport.abort()
        return await asyncio.open_connection("127.0.0.1", port)


async def _exchange(connection: _Connection, request: bytes) -> WireReply:
    reader, writer = connection
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in head[1:-2]:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers["content-length"]))
    return WireReply(int(head[0].split()[1]), headers, body)
