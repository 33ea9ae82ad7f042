"""A TCP proxy that fails on demand: between a door and its server it loses replies, swallows everything, or cuts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit, urlunsplit


class Proxy:
    """Forwards bytes both ways. The switches act on open connections and on new ones, at once, until changed again."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._dropping = {"requests": False, "replies": False}
        self._replies_max: int | None = None
        self._held_words: bytes | None = None
        self._released = asyncio.Event()
        self.held = 0
        """How many requests were held so far."""
        self.connections = 0
        """How many were accepted so far."""
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, url: str) -> str:
        """The same URL, through this proxy."""
        parts = urlsplit(url)
        user_info, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=user_info + at + self.address))

    def drop_replies(self) -> None:
        """Requests arrive, their replies are lost; connections stay open."""
        self._dropping = {"requests": False, "replies": True}

    def blackhole(self) -> None:
        """Nothing arrives anywhere; connections stay open, and new ones are accepted."""
        self._dropping = {"requests": True, "replies": True}

    def stall_after(self, replies: int) -> None:
        """A new connection gets so many pieces of reply, and then nothing of it arrives anywhere any more."""
        self._replies_max = replies

    def hold(self, words: bytes) -> None:
        """Requests that contain these bytes, and all behind them on their connections, wait until `restore()`."""
        self._held_words = words
        self._released.clear()

    def restore(self) -> None:
        """Forward again, what was held too. What was dropped is lost for good."""
        self._dropping = {"requests": False, "replies": False}
        self._replies_max = None
        self._held_words = None
        self._released.set()

    def cut(self) -> None:
        """Break every open connection now; new ones are served."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Break everything and listen no longer, until `start()`."""
        if self._server is not None:
            self._server.close()
        self.cut()

    async def stop(self) -> None:
        await self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        pair = (writer, upstream_writer)
        stall = _Stall(self._replies_max)
        self._writers.update(pair)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._forward(reader, upstream_writer, "requests", stall))
                group.create_task(self._forward(upstream_reader, writer, "replies", stall))
        finally:
            for end in pair:
                end.transport.abort()
                self._writers.discard(end)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str, stall: "_Stall"
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if what == "requests" and self._held_words is not None and self._held_words in data:
                    self.held += 1
                    await self._released.wait()
                if not self._dropping[what] and stall.passes(what):
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()


class _Stall:
    """How many more pieces of reply one connection gets; None = all."""

    def __init__(self, replies: int | None) -> None:
        self._replies = replies

    def passes(self, what: str) -> bool:
        if self._replies is None:
            return True
        if what == "replies":
            self._replies -= self._replies >= 0
            return self._replies >= 0
        return self._replies > 0


@asynccontextmanager
async def proxy_to(url: str) -> AsyncGenerator[Proxy]:
    """A proxy before the server of a URL."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
