"""The only door to Redis: one connection per door, order kept, nothing sent twice.

redis-py's client would re-send a command after a time-out and hop between pooled connections; a script that decides
about stock must do neither. So the door uses the driver's connection alone: one request, one reply, under one lock. A
read that was cut short (time-out, cancellation) closes the connection, so that its late reply reaches nobody else.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Self, cast

from redis.asyncio.connection import Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError

from kernel.errors import ScriptFailed, StockgateError, StoreRefused, StoreUnavailable
from kernel.metrics import Metrics
from kernel.scripts import Script
from kernel.settings import Settings
from kernel.tls import client_context, refusal

SUBSCRIPTION_PING_S: Final = 5.0
"""A subscription that heard nothing for this long asks whether the other side is still there."""

LOAD_TRIES: Final = 3
"""A script that Redis forgets again and again is run so often; NOSCRIPT proves each time that it was not."""

REFUSED_CODES: Final = frozenset(
    {
        "OOM",
        "MISCONF",
        "READONLY",
        "LOADING",
        "BUSY",
        "MASTERDOWN",
        "NOREPLICAS",
        "NOAUTH",
        "WRONGPASS",
        "NOPERM",
        "CLUSTERDOWN",
        "MOVED",
        "ASK",
        "TRYAGAIN",
    }
)
"""Error codes with which Redis refuses a command before it starts it."""

_RAISED_IN_SCRIPT: Final = "@user_script"
"""Redis 7 appends the place to an error that a running script raised; an up-front refusal has no place."""

Argument = bytes | str | int


def _connection(settings: Settings, name: str) -> Connection:
    """A connection that is not connected yet. Every option that matters is written out here."""
    options: dict[str, Any] = dict(parse_url(settings.redis_url.get_secret_value()))
    connection_class: type[Connection] = options.pop("connection_class", Connection)
    if issubclass(connection_class, SSLConnection):
        connection_class = _tls_connection(client_context(settings))
    options |= {
        "client_name": name,
        "protocol": 2,
        "decode_responses": False,
        "retry": Retry(NoBackoff(), 0),
        # Limits are set once per call with asyncio.timeout; a second timer in the driver would cost and tell nothing.
        "socket_timeout": None,
        "socket_connect_timeout": settings.redis_timeout_ms / 1000,
        "health_check_interval": 0,
        "driver_info": None,
    }
    return connection_class(**options)


def _tls_connection(context: ssl.SSLContext) -> type[Connection]:
    """A class of connections that use this context: the driver would make one from options, and from its defaults."""

    class TLSConnection(Connection):
        def _connection_arguments(self) -> Mapping[str, Any]:
            return {**cast("Mapping[str, Any]", super()._connection_arguments()), "ssl": context}  # pyright: ignore[reportUnknownMemberType]

    return TLSConnection


def pack(words: Sequence[Argument], keys: Sequence[str] = (), args: Sequence[Argument] = ()) -> bytes:
    """Encode one command as RESP: words, then keys, then arguments. Integers are written as decimal digits."""
    head = f"*{len(words) + len(keys) + len(args)}\r\n".encode()
    # A tick names up to a thousand keys: ASCII ones, whose length in bytes is their length, are encoded all at once.
    text = "".join([f"${len(key)}\r\n{key}\r\n" for key in keys])
    middle = text.encode() if text.isascii() else _pack_each(keys)
    return b"".join((head, _pack_each(words), middle, _pack_each(args)))


def _pack_each(arguments: Sequence[Argument]) -> bytes:
    parts: list[bytes] = []
    for argument in arguments:
        if isinstance(argument, str):
            data = argument.encode()
        elif isinstance(argument, bytes):
            data = argument
        else:
            data = b"%d" % argument
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _translated(error: RedisError | OSError, *, sent: bool) -> StockgateError:
    """What the driver's error is in our words; `sent` = the command may have reached the server."""
    text = str(error)
    if not sent and (why := refusal(error)) is not None:
        return StoreRefused("redis", "TLS_FAILED", why)
    # The driver cuts the codes it knows off the text and keeps them aside.
    code = (error.status_code if isinstance(error, RedisError) else None) or text.partition(" ")[0]
    if code in REFUSED_CODES and _RAISED_IN_SCRIPT not in text:
        return StoreRefused("redis", code, text)
    if sent and isinstance(error, ResponseError):
        return ScriptFailed(text if text.startswith(code) else f"{code} {text}")
    return StoreUnavailable("redis", "unknown" if sent else "not_executed", text)


class _Call:
    """How far one call has come: the outcome of its failure depends on it."""

    __slots__ = ("sent",)

    def __init__(self) -> None:
        self.sent = False


class RedisDoor:
    """One connection to Redis, opened at its first use and again after it broke. Safe to share within one event loop.

    Every method raises StoreUnavailable (`not_executed` if nothing was sent, `unknown` otherwise), StoreRefused if the
    server refused up front, ScriptFailed on any other error of the server. Nothing is ever sent a second time, with one
    exception: NOSCRIPT proves that a script did not run. A call has one time limit for waiting its turn, connecting and
    the reply together.
    """

    def __init__(self, settings: Settings, name: str, metrics: Metrics | None) -> None:
        self._metrics = metrics
        if metrics is not None:
            metrics.begin_failures("redis", (*REFUSED_CODES, "SCRIPT_FAILED"))
        self._timeout_s = settings.redis_timeout_ms / 1000
        self._connection = _connection(settings, name)
        self._turn = asyncio.Lock()
        self._reply_owed = False
        self._closed = False
        self.generation = 0
        """Grows by one with every connection made, so that a leader can see that it was reconnected."""

    @classmethod
    def open(cls, settings: Settings, *, name: str, metrics: Metrics | None = None) -> Self:
        """Make a door; nothing is connected before the first call. `name` appears in CLIENT LIST (no spaces)."""
        return cls(settings, name, metrics)

    @property
    def retries(self) -> int:
        """How often the driver itself would send a command again after a failure: 0, or a decision could count twice."""
        return self._connection.retry.get_retries()

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> Any:
        """Run a script by its sha and return its reply, bulk strings as bytes. Sends its source where Redis forgot it."""
        packed = pack(("EVALSHA", script.sha, len(keys)), keys, args)
        async with self._one_call(self._timeout_s) as call:
            try:
                return await self._exchange(packed, call)
            except NoScriptError:
                if script != Script.of(script.name, script.source):
                    raise ScriptFailed(f"script {script.name}: its sha is not that of its source") from None
                return await self._load_and_run(script, packed, call)

    async def _load_and_run(self, script: Script, packed: bytes, call: _Call) -> Any:
        """Load the script and run it with one write, so that hardly anybody can make Redis forget it in between."""
        load = pack(("SCRIPT", "LOAD", script.source))
        for _ in range(LOAD_TRIES - 1):
            with suppress(NoScriptError):
                return await self._exchange(load + packed, call, replies=2)
        return await self._exchange(load + packed, call, replies=2)

    async def command(self, *args: Argument) -> Any:
        """Run one plain command, its words one by one (`"CONFIG", "GET", "maxmemory"`), and return its reply."""
        async with self._one_call(self._timeout_s) as call:
            return await self._exchange(pack(args), call)

    async def commands(self, batch: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run plain commands with one write and return their replies in order; raises the first error among them.

        The replies are due within one call's time limit together, so a batch must be small beside that.
        """
        async with self._one_call(self._timeout_s) as call:
            return await self._exchange_all(b"".join(map(pack, batch)), call, len(batch))

    async def read_stream(
        self, key: str, after_m: int, count: int, block_ms: int
    ) -> list[tuple[int, dict[bytes, bytes]]]:
        """Read entries `m > after_m` of a stream whose ids are `m-0`, at most `count`; waits up to `block_ms` for one.

        Holds this door's connection while it waits: give a reader a door of its own.
        """
        block: tuple[Argument, ...] = ("BLOCK", block_ms) if block_ms > 0 else ()
        packed = pack(("XREAD", "COUNT", count, *block, "STREAMS", key, f"{after_m}-0"))
        async with self._one_call(self._timeout_s + block_ms / 1000) as call:
            reply = await self._exchange(packed, call)
        return _entries(key, reply[0][1]) if reply else []

    async def close(self) -> None:
        """Close the connection; calls that wait for a reply end as `unknown`, later ones as `not_executed`."""
        self._closed = True
        await self._connection.disconnect(nowait=True)

    @asynccontextmanager
    async def _one_call(self, timeout_s: float) -> AsyncGenerator[_Call]:
        """Hold the connection for one call within its time limit, and translate what goes wrong."""
        call = _Call()
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                yield call
        except TimeoutError:
            outcome = "unknown" if call.sent else "not_executed"
            raise self._counted(StoreUnavailable("redis", outcome, f"no reply within {timeout_s:g} s")) from None
        except (RedisError, OSError) as error:
            raise self._counted(_translated(error, sent=call.sent)) from error

    def _counted(self, failure: StockgateError) -> StockgateError:
        if self._metrics is not None:
            self._metrics.count_failure("redis", failure)
        return failure

    async def _exchange(self, packed: bytes, call: _Call, replies: int = 1) -> Any:
        """Send commands and return the reply to the last; raises the first error among them once all are read."""
        return (await self._exchange_all(packed, call, replies))[-1]

    async def _exchange_all(self, packed: bytes, call: _Call, replies: int) -> list[Any]:
        connection = self._connection
        # Data or an end of stream between two calls belongs to nobody who still waits: begin anew.
        if connection.is_connected and (self._reply_owed or await connection.can_read()):
            await connection.disconnect(nowait=True)
        if self._closed:
            raise RedisConnectionError("the door is closed")
        if not connection.is_connected:
            self._reply_owed = True
            await connection.connect()
            self._reply_owed = False
            self.generation += 1
            if self._metrics is not None:
                self._metrics.store_connections_total.labels("redis").inc()
        call.sent = self._reply_owed = True
        await connection.send_packed_command([packed], check_health=False)
        error: ResponseError | None = None
        read: list[Any] = []
        for _ in range(replies):
            try:
                read.append(cast("Any", await connection.read_response(disable_decoding=True)))
            except ResponseError as refused:
                error = error or refused
        self._reply_owed = False
        if error is not None:
            raise error
        return read


def _entries(key: str, reply: list[tuple[bytes, list[bytes]]]) -> list[tuple[int, dict[bytes, bytes]]]:
    entries: list[tuple[int, dict[bytes, bytes]]] = []
    for entry_id, flat in reply:
        m, _, part = entry_id.partition(b"-")
        if part != b"0":
            raise ScriptFailed(f"{key}: entry {entry_id!r} was not written by the log's script")
        entries.append((int(m), dict(zip(flat[::2], flat[1::2], strict=True))))
    return entries


class Subscription:
    """Bodies published on one channel, in order, from the moment it was opened. Made by `open_subscription` alone."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Wait for the next body; raises StoreUnavailable once the connection is broken or its peer silent."""
        limit_s, asked = SUBSCRIPTION_PING_S, False
        try:
            while True:
                # None = nothing within the limit; what had come in part is kept for the next read.
                reply = cast("Any", await self._connection.read_response(disable_decoding=True, timeout=limit_s))
                if reply is None:
                    if asked:
                        await self._connection.disconnect(nowait=True)
                        raise RedisConnectionError("no answer to a ping")
                    async with asyncio.timeout(self._timeout_s):
                        await self._connection.send_packed_command([pack(("PING",))], check_health=False)
                    limit_s, asked = self._timeout_s, True
                elif reply[0] == b"message":
                    return reply[2]
                else:
                    limit_s, asked = SUBSCRIPTION_PING_S, False
        except (RedisError, OSError) as error:
            raise StoreUnavailable("redis", "unknown", str(error)) from error


@asynccontextmanager
async def open_subscription(
    settings: Settings, channel: str, *, name: str = "subscription"
) -> AsyncGenerator[Subscription]:
    """Subscribe on a connection of its own; entered once Redis has answered, so that nothing later is missed.

    Raises StoreUnavailable (`not_executed`) where that fails; what comes after it raises from the iteration.
    """
    connection, timeout_s = _connection(settings, name), settings.redis_timeout_ms / 1000
    try:
        try:
            async with asyncio.timeout(timeout_s):
                await connection.connect()
                await connection.send_packed_command([pack(("SUBSCRIBE", channel))], check_health=False)
                await connection.read_response(disable_decoding=True)
        except TimeoutError:
            raise StoreUnavailable("redis", "not_executed", f"not subscribed within {timeout_s:g} s") from None
        except (RedisError, OSError) as error:
            raise _translated(error, sent=False) from error
        yield Subscription(connection, timeout_s)
    finally:
        await connection.disconnect(nowait=True)
