"""The only door to MySQL and MariaDB: short transactions on a bounded pool, failures translated once.

Sessions run with autocommit on, so that a single SELECT leaves nothing open; whatever belongs together stands between
BEGIN and COMMIT of `Database.transaction`. Every statement has a time limit made by `asyncio.timeout`; a statement that
was cut short closes its connection, because its late reply must reach nobody else and the server must roll back.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NewType, Self, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import asyncmy
import msgspec
from asyncmy import errors as driver
from asyncmy.connection import Connection

from kernel.errors import (
    DataRejected,
    DuplicateKey,
    Retryable,
    StatementError,
    StatementFailed,
    StockgateError,
    StoreOutcome,
    StoreRefused,
    StoreUnavailable,
)
from kernel.metrics import Metrics
from kernel.settings import Settings
from kernel.silence import Silence
from kernel.tls import client_context, refusal

Got = TypeVar("Got")

Statement = NewType("Statement", str)
"""One SQL statement as it stands in its file; made by `sql.load(name)` alone. Parameters are `%s`, a literal `%` is `%%`."""

IDLE_TRANSACTION_S: Final = 3
"""A transaction without a statement for this long is killed by the server (MariaDB), so that no lock stays behind."""

IDLE_SESSION_S: Final = 300
"""A pooled session older than this since its last use is closed instead of used again."""

PACKET_MARGIN_BYTES: Final = 4096

DUPLICATE: Final = frozenset({1062, 1586})
DATA_REJECTED: Final = frozenset(
    {
        1048,  # column cannot be null
        1216,  # foreign key, child row
        1217,  # foreign key, parent row
        1264,  # out of range
        1265,  # data truncated
        1292,  # wrong value
        1364,  # no default
        1366,  # incorrect value for the column's type
        1367,  # illegal value found during parsing
        1406,  # too long
        1411,  # incorrect value for a function
        1451,  # foreign key, parent row
        1452,  # foreign key, child row
        1690,  # value out of range in an expression
        3819,  # check violated (MySQL)
        4025,  # check violated (MariaDB)
    }
)
RETRYABLE: Final = frozenset(
    {
        1020,  # row changed since the snapshot
        1205,  # lock wait timeout: only the statement is undone, so the door rolls the rest back
        1213,  # deadlock
        1317,  # query interrupted
        1412,  # table definition changed
        1615,  # prepared statement must be prepared again
        1969,  # max_statement_time exceeded (MariaDB)
        3024,  # max_execution_time exceeded (MySQL)
        3572,  # NOWAIT lock is held
    }
)
CONNECTION_LOST: Final = frozenset(
    {0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2003, 2006, 2013, 2014, 2027, 2055, 4031}
)
REFUSED: Final = {
    1021: "DISK_FULL",
    1114: "DISK_FULL",
    3: "DISK_FULL",
    28: "DISK_FULL",
    1036: "READ_ONLY",
    1290: "READ_ONLY",
    1792: "READ_ONLY",
    1836: "READ_ONLY",
    1874: "READ_ONLY",
    1153: "PACKET_TOO_LARGE",
    2020: "PACKET_TOO_LARGE",
    1040: "TOO_MANY_CONNECTIONS",
    1203: "TOO_MANY_CONNECTIONS",
    1226: "TOO_MANY_CONNECTIONS",
    1044: "ACCESS_DENIED",
    1045: "ACCESS_DENIED",
    1049: "ACCESS_DENIED",
    1130: "ACCESS_DENIED",
    1142: "ACCESS_DENIED",
    1143: "ACCESS_DENIED",
    1227: "ACCESS_DENIED",
    1370: "ACCESS_DENIED",
    1698: "ACCESS_DENIED",
}
_ENGINE_ERROR: Final = 1030
"""`Got error N from storage engine`: the operating system's number is in the text."""

_SESSION: Final = (
    "SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = {lock_wait_s},"
    " sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION'"
    " /*M!100300 , idle_transaction_timeout = {idle_s} */"
)


class _ConnectionLostError(Exception):
    """The connection is of no use any more; what it means depends on what was under way."""


class _NoAnswerError(_ConnectionLostError):
    """Nothing came within the time limit. Another connection would be kept waiting too: nothing is asked again."""


def translate(error: driver.MySQLError) -> StockgateError | None:
    """The failure that a server's error is, or None where it tells that the connection is lost."""
    errno = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    message = str(error.args[1]) if len(error.args) > 1 else str(error)
    if errno in CONNECTION_LOST:
        return None
    if errno in REFUSED:
        return StoreRefused("mysql", REFUSED[errno], message)
    if errno == _ENGINE_ERROR and ("error 28 " in message or "error 122 " in message):
        return StoreRefused("mysql", "DISK_FULL", message)
    for numbers, failure in ((DUPLICATE, DuplicateKey), (DATA_REJECTED, DataRejected), (RETRYABLE, Retryable)):
        if errno in numbers:
            return failure(errno, message)
    return StatementFailed(errno, message)


class _Session:
    """One connection with its session settings, and what was prepared on it."""

    __slots__ = ("connection", "last_used", "packet_bytes_max", "prepared", "silence")

    def __init__(self, connection: Connection, silence: Silence) -> None:
        self.connection: Any = connection
        self.silence = silence
        self.packet_bytes_max = 0
        self.prepared: dict[Statement, Any] = {}
        self.last_used = time.monotonic()

    def usable(self) -> bool:
        """Whether the next caller may have it: connected, nothing owed, no transaction."""
        return (
            self.connection.connected
            and not self.connection._stream_broken  # noqa: SLF001 - the driver's own pool asks the same
            and not self.connection.get_transaction_status()
        )

    def close(self) -> None:
        """Close at once, without a word to the server: it rolls back what is open."""
        self.connection.close()


@asynccontextmanager
async def _asking(session: _Session, timeout_s: float) -> AsyncGenerator[None]:
    """One exchange within its time limit. Raises the translated failure, or _ConnectionLostError with the session closed."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            yield
        session.silence.answered()
    except TimeoutError:
        session.close()
        session.silence.unanswered()
        raise _NoAnswerError(f"no answer within {timeout_s:g} s") from None
    except driver.MySQLError as error:
        session.silence.answered()
        failure = translate(error)
        if failure is not None:
            raise failure from error
        session.close()
        raise _ConnectionLostError(str(error)) from error
    except OSError as error:
        session.silence.answered()
        session.close()
        raise _ConnectionLostError(str(error)) from error
    except asyncio.CancelledError:
        session.close()
        session.silence.given_up(time.monotonic() - began, timeout_s)
        raise
    except BaseException:
        # A reply that the driver could not read: what is left of it must not reach the next caller.
        session.close()
        raise


class Transaction:
    """Statements between BEGIN and COMMIT on one connection; made by `Database.transaction` alone.

    A parameter that is a tuple expands to a list, `IN %s` with `(1, 2)`: it must not be empty, and only validated strings
    and integers may be in it. After Retryable or StoreUnavailable the server has undone everything: no statement follows.
    Raises DuplicateKey, DataRejected, Retryable, StatementFailed, StoreRefused, or StoreUnavailable (`not_executed`: what
    was not committed never happened).
    """

    def __init__(self, session: _Session, timeout_s: float) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._ended: str | None = None
        self._asking = False

    async def fetch_all(self, statement: Statement, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return all its rows, columns in the order of the statement."""
        async with self._one_statement():
            return await _query(self._session, statement, params)

    async def fetch_one(self, statement: Statement, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Run a query and return its first row, or None."""
        rows = await self.fetch_all(statement, params)
        return rows[0] if rows else None

    async def execute(self, statement: Statement, params: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed: a row that already had the values is not counted."""
        async with self._one_statement(), self._session.connection.cursor() as cursor:
            await cursor.execute(statement, tuple(params))
            return cursor.rowcount

    async def execute_many(self, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
        """Run one INSERT or UPDATE for many rows, in their order and in as few exchanges as the server's packet allows.

        On MariaDB the rows travel in binary form with one prepared statement, elsewhere as multi-row statements.
        `INSERT … VALUES (%s, …) ON DUPLICATE KEY UPDATE a = VALUES(a)` works on both ways.
        """
        if not rows:
            return
        async with self._one_statement():
            for part in _parts(rows, self._session.packet_bytes_max):
                await _execute_many(self._session, statement, part)

    @asynccontextmanager
    async def _one_statement(self) -> AsyncGenerator[None]:
        if self._ended is not None:
            raise StoreUnavailable("mysql", "not_executed", f"the transaction is over: {self._ended}")
        if self._asking:
            raise RuntimeError("a transaction has one connection: its statements follow each other")
        self._asking = True
        try:
            async with _asking(self._session, self._timeout_s):
                yield
        except _ConnectionLostError as lost:
            self._ended = str(lost)
            raise StoreUnavailable("mysql", "not_executed", self._ended) from lost
        except (Retryable, StoreRefused) as failure:
            self._ended = str(failure)
            raise
        finally:
            self._asking = False


async def _query(session: _Session, statement: Statement, params: Sequence[Any]) -> list[tuple[Any, ...]]:
    async with session.connection.cursor() as cursor:
        await cursor.execute(statement, tuple(params))
        return list(await cursor.fetchall())


async def _execute_many(session: _Session, statement: Statement, rows: Sequence[Sequence[Any]]) -> None:
    if statement not in session.prepared:
        session.prepared[statement] = await _prepare(session, statement)
    prepared = session.prepared[statement]
    if prepared is not None:
        # ValueError is raised before anything is sent: a column is NULL in all rows, or of two types.
        with suppress(ValueError):
            await prepared.execute_bulk(rows)
            return
    async with session.connection.cursor() as cursor:
        # The driver makes multi-row statements only where INSERT is the first word.
        await cursor.executemany(_without_header(statement), rows)


async def _prepare(session: _Session, statement: Statement) -> Any:
    """The prepared statement for the bulk protocol, or None on a server without it."""
    if not session.connection._bulk_supported:  # noqa: SLF001 - no public word for it before the first use
        return None
    return await session.connection.prepare(statement.replace("%s", "?").replace("%%", "%"))


def _without_header(statement: str) -> str:
    lines = statement.splitlines(keepends=True)
    while lines and (not lines[0].strip() or lines[0].lstrip().startswith("--")):
        lines.pop(0)
    return "".join(lines)


def _parts(rows: Sequence[Sequence[Any]], packet_bytes_max: int) -> Iterator[Sequence[Sequence[Any]]]:
    """Cut rows into parts that fit into one packet of the server; raises StoreRefused if one row alone does not.

    Encoded as msgpack a value takes its own bytes and at least one more, in the driver's packets at most nine more; text
    that has to be escaped can double.
    """
    columns = len(rows[0])
    size = 2 * len(msgspec.msgpack.encode(rows)) + 9 * columns * len(rows)
    if size <= packet_bytes_max - PACKET_MARGIN_BYTES:
        yield rows
    elif len(rows) == 1:
        raise StoreRefused("mysql", "PACKET_TOO_LARGE", f"one row of about {size} bytes, packets of {packet_bytes_max}")
    else:
        middle = len(rows) // 2
        yield from _parts(rows[:middle], packet_bytes_max)
        yield from _parts(rows[middle:], packet_bytes_max)


class Database:
    """A bounded pool of sessions to one database. Opening it connects nothing; it works again as soon as MySQL does."""

    def __init__(self, settings: Settings, name: str, pool_max: int, metrics: Metrics | None) -> None:
        self._metrics = metrics
        self._in_use = 0
        self._options = _connect_options(settings, name)
        self._timeout_s = settings.mysql_timeout_ms / 1000
        self._session_settings = _SESSION.format(
            # Below our own limit, so that the server says 1205 instead of us hanging up.
            lock_wait_s=max(1, settings.mysql_timeout_ms // 1000 - 1),
            idle_s=IDLE_TRANSACTION_S,
        )
        self._slots = asyncio.Semaphore(pool_max)
        self._silence = Silence("mysql")
        self._idle: list[_Session] = []
        self._closed = False
        self.generation = 0
        """Grows by one with every session made, so that a watcher can see that the server may be another one now."""
        if metrics is not None:
            metrics.begin_failures("mysql", (*REFUSED.values(), "STATEMENT_FAILED"))
            metrics.mysql_sessions_max.labels(name).set(pool_max)
            metrics.mysql_sessions_in_use.labels(name).set_function(lambda: self._in_use)

    @classmethod
    async def open(
        cls, settings: Settings, *, name: str, pool_max: int | None = None, metrics: Metrics | None = None
    ) -> Self:
        """Make a pool of at most `pool_max` sessions (default from the settings); `name` is told to the server."""
        return cls(settings, name, pool_max or settings.mysql_pool_max, metrics)

    @asynccontextmanager
    async def transaction(self, *, timeout_ms: int | None = None) -> AsyncGenerator[Transaction]:
        """BEGIN, then COMMIT where the block ends well and ROLLBACK where it raises. READ COMMITTED.

        `timeout_ms` is the limit of each statement, from the settings by default (migrations need longer ones). Raises
        StoreUnavailable `not_executed` when no session is to be had, `unknown` when the answer to COMMIT is lost.
        """
        timeout_s = self._timeout_s if timeout_ms is None else timeout_ms / 1000
        async with self._session("BEGIN") as session:
            transaction = Transaction(session, timeout_s)
            try:
                yield transaction
            except Exception:
                await _roll_back(session, transaction)
                raise
            except BaseException:
                session.close()
                raise
            await _commit(session, transaction, timeout_s)

    async def fetch_all(self, statement: Statement, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one query outside of a transaction and return all its rows; asked again once if a pooled session was dead.

        Raises as `Transaction.fetch_all`.
        """
        async with self._slot():
            return await self._first(lambda session: self._read(session, statement, params))

    async def close(self) -> None:
        """Close all idle sessions; those in use close when they come back."""
        self._closed = True
        while self._idle:
            await _say_goodbye(self._idle.pop())

    @asynccontextmanager
    async def _session(self, first: str) -> AsyncGenerator[_Session]:
        """Hold a session that has just run `first`: a pooled one that died in the meantime is replaced unnoticed."""
        async with self._slot():

            async def begin(session: _Session) -> _Session:
                await self._run(session, first)
                return session

            session = await self._first(begin)
            try:
                yield session
            finally:
                self._give_back(session)

    async def _first(self, ask: Callable[[_Session], Awaitable[Got]]) -> Got:
        """The first exchange of a call, on a pooled session or, where that turns out to be dead, on a fresh one.

        One that did not answer in time is not replaced: that would only wait once more for the same silence.
        """
        try:
            session, fresh = await self._take()
            try:
                return await ask(session)
            except _ConnectionLostError as lost:
                if fresh or isinstance(lost, _NoAnswerError):
                    raise
            return await ask(await self._connect())
        except _ConnectionLostError as lost:
            if isinstance(lost, _NoAnswerError):
                # Where one was swallowed the others may be too, and each would cost somebody his time limit.
                self._drop_idle()
            raise StoreUnavailable("mysql", "not_executed", str(lost)) from lost

    @asynccontextmanager
    async def _slot(self) -> AsyncGenerator[None]:
        try:
            self._silence.check()
            async with asyncio.timeout(self._timeout_s):
                await self._slots.acquire()
        except StoreUnavailable as silent:
            self._count(silent)
            raise
        except TimeoutError:
            busy = StoreUnavailable("mysql", "not_executed", f"all sessions are busy for {self._timeout_s:g} s")
            self._count(busy)
            raise busy from None
        self._in_use += 1
        try:
            with self._silence.call():
                yield
        except (StoreUnavailable, StatementError) as failure:
            self._count(failure)
            raise
        finally:
            self._in_use -= 1
            self._slots.release()

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _count(self, failure: StoreUnavailable | StatementError) -> None:
        # What another store refused within a transaction of ours passes by here too.
        if self._metrics is not None and getattr(failure, "store", "mysql") == "mysql":
            self._metrics.count_failure("mysql", failure)

    async def _take(self) -> tuple[_Session, bool]:
        """An idle session or a fresh one, and whether it is fresh."""
        oldest = time.monotonic() - IDLE_SESSION_S
        while self._idle:
            session = self._idle.pop()
            if session.usable() and session.last_used > oldest:
                return session, False
            session.close()
        return await self._connect(), True

    def _give_back(self, session: _Session) -> None:
        if session.usable() and not self._closed:
            session.last_used = time.monotonic()
            self._idle.append(session)
        else:
            session.close()

    async def _connect(self) -> _Session:
        if self._closed:
            raise _ConnectionLostError("the database is closed")
        session: _Session | None = None
        began = time.monotonic()
        try:
            # One limit for all of it, the session's settings included.
            async with asyncio.timeout(self._timeout_s):
                session = _Session(await self._dial(), self._silence)
                await self._run(session, self._session_settings)
                await self._run(session, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                async with _asking(session, self._timeout_s):
                    rows = await _query(session, Statement("SELECT @@max_allowed_packet"), ())
        except TimeoutError:
            if session is None:
                self._silence.unanswered()
            raise _NoAnswerError(f"not connected within {self._timeout_s:g} s") from None
        except asyncio.CancelledError:
            if session is None:
                self._silence.given_up(time.monotonic() - began, self._timeout_s)
            raise
        session.packet_bytes_max = int(rows[0][0])
        return session

    async def _dial(self) -> Connection:
        """Connect and log in. The caller limits it."""
        task = asyncio.current_task()
        cancelled = task.cancelling() if task is not None else 0
        try:
            # The driver dials with wait_for, which loses a cancellation that comes together with the connection: it is
            # raised again. What would then wait for ever is cancelled a second time.
            async with asyncio.timeout(2 * self._timeout_s):
                connection = await asyncmy.connect(**self._options)  # pyright: ignore[reportUnknownMemberType]
                if task is not None and task.cancelling() > cancelled:
                    connection.close()
                    raise asyncio.CancelledError
        except driver.MySQLError as error:
            self._silence.answered()
            if (why := refusal(error)) is not None:
                raise StoreRefused("mysql", "TLS_FAILED", why) from error
            failure = translate(error)
            raise failure or _ConnectionLostError(str(error)) from error
        except OSError as error:
            self._silence.answered()
            if (why := refusal(error)) is not None:
                raise StoreRefused("mysql", "TLS_FAILED", why) from error
            raise _ConnectionLostError(str(error)) from error
        self.generation += 1
        if self._metrics is not None:
            self._metrics.store_connections_total.labels("mysql").inc()
        return connection

    async def _read(self, session: _Session, statement: Statement, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            async with _asking(session, self._timeout_s):
                return await _query(session, statement, params)
        finally:
            self._give_back(session)

    async def _run(self, session: _Session, sql: str) -> None:
        async with _asking(session, self._timeout_s):
            await session.connection.query(sql)


def _connect_options(settings: Settings, name: str) -> dict[str, Any]:
    """Every option of the driver that matters, written out. `?unix_socket=/path` in the URL is understood."""
    url = urlsplit(settings.mysql_url.get_secret_value())
    options: dict[str, Any] = {
        "host": url.hostname or "127.0.0.1",
        "port": url.port or 3306,
        "user": unquote(url.username or ""),
        "password": unquote(url.password or ""),
        "database": unquote(url.path.strip("/")) or None,
        "charset": "utf8mb4",
        "autocommit": True,
        # The driver's own limits: for dialling a part of it, for reading a task each. Ours is around the whole exchange.
        "connect_timeout": 2 * settings.mysql_timeout_ms / 1000,
        "read_timeout": None,
        # echo would log parameters; the statement cache would refuse a tuple for IN.
        "echo": False,
        "stmt_cache_size": 0,
        "local_infile": False,
        "program_name": name,
    }
    if url.scheme == "mysqls":
        # The driver upgrades before it logs in, and asks for that whether or not the server offers it.
        options["ssl"] = client_context(settings)
    if sockets := parse_qs(url.query).get("unix_socket"):
        options["unix_socket"] = sockets[0]
    return options


async def _commit(session: _Session, transaction: Transaction, timeout_s: float) -> None:
    """COMMIT; raises StoreUnavailable `unknown` where its answer is lost."""
    if transaction._ended is not None:  # noqa: SLF001 - one file, two halves of one thing
        await _roll_back(session, transaction)
        raise StoreUnavailable("mysql", "not_executed", f"the transaction was over: {transaction._ended}")  # noqa: SLF001
    transaction._ended = "committed"  # noqa: SLF001
    outcome: StoreOutcome = "unknown"
    try:
        async with _asking(session, timeout_s):
            await session.connection.commit()
    except _ConnectionLostError as lost:
        raise StoreUnavailable("mysql", outcome, f"the answer to COMMIT is lost: {lost}") from lost
    except Retryable:
        session.close()
        raise
    except StockgateError as failure:
        session.close()
        raise StoreUnavailable("mysql", outcome, f"COMMIT: {failure}") from failure


async def _roll_back(session: _Session, transaction: Transaction) -> None:
    """ROLLBACK, or close the session: either way nothing of the transaction stays."""
    transaction._ended = transaction._ended or "rolled back"  # noqa: SLF001
    if not session.connection.connected:
        return
    try:
        async with asyncio.timeout(1.0):
            await session.connection.rollback()
    except (TimeoutError, OSError, driver.MySQLError):
        session.close()
    except asyncio.CancelledError:
        session.close()
        raise


async def _say_goodbye(session: _Session) -> None:
    with suppress(TimeoutError, OSError, driver.MySQLError):
        async with asyncio.timeout(1.0):
            await session.connection.ensure_closed()
    session.close()
