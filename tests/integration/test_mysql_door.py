"""The MySQL door on a real MariaDB: all or nothing, nothing half-open, and every failure says what is known."""

# ruff: noqa: PT012 - what is raised comes out of a whole transaction here.

import asyncio
import random
import signal
import traceback
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from asyncmy.errors import OperationalError
from pydantic import SecretStr

from kernel import mysql_door, silence
from kernel.errors import (
    DataRejected,
    DuplicateKey,
    Retryable,
    StatementError,
    StatementFailed,
    StockgateError,
    StoreRefused,
    StoreUnavailable,
)
from kernel.mysql_door import Database, Statement
from kernel.settings import Settings
from stockgate.servers import Servers
from tests.proxy import Proxy, proxy_to

DATABASE = "stockgate_mysql_door"
TABLE = Statement(
    "CREATE TABLE door ("
    " k VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY, n BIGINT NOT NULL,"
    " small TINYINT NOT NULL DEFAULT 0, note VARCHAR(10), payload MEDIUMBLOB,"
    " CONSTRAINT door_not_negative CHECK (n >= 0)) ENGINE = InnoDB"
)
INSERT = Statement("INSERT INTO door (k, n) VALUES (%s, %s)")
UPSERT = Statement(
    "-- Adds n to what is there.\n-- Relies on the primary key, 100%% of it.\n"
    "INSERT INTO door (k, n, note) VALUES (%s, %s, %s)"
    " ON DUPLICATE KEY UPDATE n = n + VALUES(n), note = VALUES(note)"
)
UPDATE = Statement("UPDATE door SET n = n + %s WHERE k = %s")
ALL = Statement("SELECT k, n FROM door ORDER BY k")
COUNT = Statement("SELECT COUNT(*) FROM door")
OPEN_TRANSACTIONS = "SELECT COUNT(*) FROM information_schema.innodb_trx"


def settings_for(url: str, timeout_ms: int = 3_000) -> Settings:
    return Settings(mysql_url=SecretStr(url), mysql_timeout_ms=timeout_ms)


@pytest.fixture
async def url(servers: Servers) -> str:
    await servers.mariadb.execute(f"DROP DATABASE IF EXISTS {DATABASE}; CREATE DATABASE {DATABASE}")
    return servers.mariadb.url.rpartition("/")[0] + f"/{DATABASE}"


@pytest.fixture
async def db(url: str) -> AsyncGenerator[Database]:
    db = await Database.open(settings_for(url), name="test")
    async with db.transaction() as tx:
        await tx.execute(TABLE)
    yield db
    await db.close()


@pytest.fixture
async def proxy(url: str) -> AsyncGenerator[Proxy]:
    async with proxy_to(url) as proxy:
        yield proxy


@pytest.fixture
async def fragile(url: str, proxy: Proxy, db: Database) -> AsyncGenerator[Database]:
    """A database through the proxy, with a time limit of 400 ms; the table is there."""
    fragile = await Database.open(settings_for(proxy.url(url), 400), name="fragile")
    yield fragile
    await fragile.close()


async def nothing_half_open(servers: Servers) -> bool:
    """Whether the server has no transaction; it takes it a moment to notice a closed connection."""
    for _ in range(100):
        if (await servers.mariadb.execute(OPEN_TRANSACTIONS)).strip() == "0":
            return True
        await asyncio.sleep(0.05)
    return False


# --- sessions and transactions -------------------------------------------------


async def test_sessions_are_as_the_protocol_needs_them(db: Database) -> None:
    rows = await db.fetch_all(
        Statement(
            "SELECT @@time_zone, @@tx_isolation, @@autocommit, @@idle_transaction_timeout, @@innodb_lock_wait_timeout,"
            " @@sql_mode LIKE '%%STRICT_TRANS_TABLES%%', @@character_set_client, '100%%'"
        ),
    )
    assert rows == [("+00:00", "READ-COMMITTED", 1, 3, 2, 1, "utf8mb4", "100%")]


async def test_commit_and_rollback(db: Database) -> None:
    async with db.transaction() as tx:
        assert await tx.execute(INSERT, ("a", 1)) == 1
        assert await tx.fetch_one(ALL) == ("a", 1)
        assert await tx.fetch_one(Statement("SELECT k FROM door WHERE k = %s"), ("b",)) is None
    with pytest.raises(KeyError):
        async with db.transaction() as tx:
            await tx.execute(INSERT, ("b", 2))
            raise KeyError("ours")
    assert await db.fetch_all(ALL) == [("a", 1)]


async def test_rowcount_is_of_changed_rows(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.execute(INSERT, ("a", 1))
        assert await tx.execute(UPDATE, (0, "a")) == 0
        assert await tx.execute(UPDATE, (1, "a")) == 1
        assert await tx.execute(UPDATE, (1, "none")) == 0


async def test_a_tuple_is_a_list_for_in(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.execute_many(INSERT, [("a", 1), ("b", 2), ("c'\\", 3)])
    some = Statement("SELECT k FROM door WHERE k IN %s AND n IN %s ORDER BY k")
    assert await db.fetch_all(some, (("a", "c'\\"), (1, 2, 3))) == [("a",), ("c'\\",)]


async def test_text_and_bytes_come_back_as_they_were(db: Database) -> None:
    payload = bytes(range(256))
    note = "ä'\"\\%s\n☃"
    async with db.transaction() as tx:
        await tx.execute(Statement("INSERT INTO door (k, n, note, payload) VALUES ('a', 1, %s, %s)"), (note, payload))
        await tx.execute_many(
            Statement("INSERT INTO door (k, n, note, payload) VALUES (%s, %s, %s, %s)"), [("b", 1, note, payload)]
        )
    rows = await db.fetch_all(Statement("SELECT note, payload FROM door"))
    assert rows == [(note, payload)] * 2


async def test_statements_of_one_transaction_follow_each_other(db: Database) -> None:
    async with db.transaction() as tx:
        asking = asyncio.create_task(tx.fetch_one(Statement("SELECT SLEEP(0.1)")))
        await asyncio.sleep(0.02)
        with pytest.raises(RuntimeError):
            await tx.execute(INSERT, ("a", 1))
        assert await asking == (0,)
        await tx.execute(INSERT, ("b", 1))
    assert await db.fetch_all(ALL) == [("b", 1)]


async def test_wrong_parameters_are_a_bug_and_leave_nothing(db: Database, servers: Servers) -> None:
    with pytest.raises(TypeError):
        await db.fetch_all(Statement("SELECT %s"), (1, 2))
    with pytest.raises(TypeError):
        async with db.transaction() as tx:
            await tx.execute(INSERT, ("a", 1))
            await tx.execute(INSERT, ("b",))
    assert await nothing_half_open(servers)
    assert await db.fetch_all(COUNT) == [(0,)]


# --- many rows ------------------------------------------------------------------


@pytest.fixture(params=["bulk protocol", "multi-row statements"])
async def many(request: pytest.FixtureRequest, db: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A server with MariaDB's bulk protocol, and one without."""
    if request.param == "multi-row statements":

        async def prepare_nothing(*_: Any) -> None:
            return None

        monkeypatch.setattr(mysql_door, "_prepare", prepare_nothing)
    return db


async def test_many_rows_are_inserted_and_added_to(many: Database) -> None:
    rows = [(f"k{n:05d}", n, "note") for n in range(2_000)]
    for _ in range(3):
        async with many.transaction() as tx:
            await tx.execute_many(UPSERT, rows)
    assert await many.fetch_all(Statement("SELECT COUNT(*), SUM(n) FROM door")) == [(2_000, 3 * sum(range(2_000)))]


async def test_many_rows_with_nulls_and_mixed_types(many: Database) -> None:
    rows = [("a", 1, None), ("b", 2**62, None), ("c", True, "x"), ("d", "7", "y")]
    async with many.transaction() as tx:
        await tx.execute_many(UPSERT, rows[:2])
        await tx.execute_many(UPSERT, rows[2:])
        await tx.execute_many(UPSERT, [])
    assert await many.fetch_all(Statement("SELECT k, n, note FROM door ORDER BY k")) == [
        ("a", 1, None),
        ("b", 2**62, None),
        ("c", 1, "x"),
        ("d", 7, "y"),
    ]


async def test_many_updates(many: Database) -> None:
    async with many.transaction() as tx:
        await tx.execute_many(INSERT, [(f"k{n}", n) for n in range(50)])
        await tx.execute_many(UPDATE, [(1_000, f"k{n}") for n in range(0, 50, 2)])
    assert await many.fetch_all(Statement("SELECT COUNT(*) FROM door WHERE n >= 1000")) == [(25,)]


@pytest.mark.parametrize(
    ("bad", "failure"),
    [
        (("k3", -1), DataRejected),
        (("k3", 2**63), DataRejected),
        (("k1", 1), DuplicateKey),
        (("k" * 21, 1), DataRejected),
    ],
)
async def test_one_bad_row_of_many_leaves_nothing(
    many: Database, bad: tuple[str, int], failure: type[StatementError]
) -> None:
    with pytest.raises(failure):
        async with many.transaction() as tx:
            await tx.execute_many(INSERT, [("k0", 1), ("k1", 1), bad, ("k9", 1)])
    assert await many.fetch_all(COUNT) == [(0,)]


async def test_more_than_a_packet_is_sent_in_parts_and_one_row_too_large_is_refused(
    servers: Servers, url: str, db: Database
) -> None:
    await servers.mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        small = await Database.open(settings_for(url), name="small packets")
        insert = Statement("INSERT INTO door (k, n, payload) VALUES (%s, %s, %s)")
        rows = [(f"k{n}", n, random.randbytes(100_000)) for n in range(40)]
        async with small.transaction() as tx:
            await tx.execute_many(insert, rows)
        stored = await db.fetch_all(Statement("SELECT k, n, payload FROM door ORDER BY n"))
        assert stored == rows
        with pytest.raises(StoreRefused) as refusal:
            async with small.transaction() as tx:
                await tx.execute_many(insert, [("big", 1, bytes(1_100_000))])
        assert (refusal.value.code, refusal.value.outcome) == ("PACKET_TOO_LARGE", "not_executed")
        await small.close()
    finally:
        await servers.mariadb.execute("SET GLOBAL max_allowed_packet = 67108864")


# --- what errors become ---------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "failure", "errno"),
    [
        ("INSERT INTO door (k, n) VALUES ('there', 1)", DuplicateKey, 1062),
        ("INSERT INTO door (k, n) VALUES ('a', -1)", DataRejected, 4025),
        ("INSERT INTO door (k, n) VALUES (REPEAT('a', 21), 1)", DataRejected, 1406),
        ("INSERT INTO door (k, n) VALUES ('ä', 1)", DataRejected, 1366),
        ("INSERT INTO door (k, n, small) VALUES ('a', 1, 128)", DataRejected, 1264),
        ("INSERT INTO door (k, n) VALUES ('a', NULL)", DataRejected, 1048),
        ("INSERT INTO door (k) VALUES ('a')", DataRejected, 1364),
        ("UPDATE door SET n = n + 9223372036854775807", DataRejected, 1690),
        ("SELECT * FROM nowhere", StatementFailed, 1146),
        ("SELEC 1", StatementFailed, 1064),
        ("KILL QUERY CONNECTION_ID()", Retryable, 1317),
    ],
)
async def test_errors_of_the_server_are_translated(
    db: Database, sql: str, failure: type[StatementError], errno: int
) -> None:
    async with db.transaction() as tx:
        await tx.execute(INSERT, ("there", 1))
    with pytest.raises(failure) as raised:
        async with db.transaction() as tx:
            await tx.execute(INSERT, ("undone", 1))
            await tx.execute(Statement(sql))
    assert raised.value.errno == errno
    assert await db.fetch_all(ALL) == [("there", 1)]


@pytest.mark.parametrize(
    ("errno", "message", "code"),
    [
        (1021, "Disk full", "DISK_FULL"),
        (1114, "The table is full", "DISK_FULL"),
        (1030, 'Got error 28 "No space left on device" from storage engine InnoDB', "DISK_FULL"),
        (1290, "--read-only", "READ_ONLY"),
        (1836, "Running in read-only mode", "READ_ONLY"),
        (1153, "Got a packet bigger than 'max_allowed_packet' bytes", "PACKET_TOO_LARGE"),
        (1040, "Too many connections", "TOO_MANY_CONNECTIONS"),
    ],
)
def test_conditions_of_the_server_are_refusals(errno: int, message: str, code: str) -> None:
    refusal = mysql_door.translate(OperationalError(errno, message))
    assert isinstance(refusal, StoreRefused)
    assert (refusal.code, refusal.outcome) == (code, "not_executed")


@pytest.mark.parametrize("errno", [2006, 2013, 2003, 1053, 1927, 4031])
def test_a_lost_connection_is_none_of_them(errno: int) -> None:
    assert mysql_door.translate(OperationalError(errno, "gone")) is None


def test_no_number_has_two_meanings() -> None:
    groups = [mysql_door.DUPLICATE, mysql_door.DATA_REJECTED, mysql_door.RETRYABLE, mysql_door.CONNECTION_LOST]
    numbers = [number for group in [*groups, mysql_door.REFUSED.keys()] for number in group]
    assert len(numbers) == len(set(numbers))


async def test_a_duplicate_leaves_the_transaction_usable(db: Database) -> None:
    async with db.transaction() as tx:
        await tx.execute(INSERT, ("a", 1))
        with pytest.raises(DuplicateKey):
            await tx.execute(INSERT, ("a", 2))
        assert await tx.fetch_all(ALL) == [("a", 1)]
    assert await db.fetch_all(ALL) == [("a", 1)]


async def test_of_a_deadlock_one_is_retryable_and_its_transaction_over(db: Database, servers: Servers) -> None:
    async with db.transaction() as tx:
        await tx.execute_many(INSERT, [("a", 0), ("b", 0)])
    first_done, outcomes = asyncio.Barrier(2), list[str]()

    async def cross(one: str, other: str) -> None:
        try:
            async with db.transaction() as tx:
                await tx.execute(UPDATE, (1, one))
                await first_done.wait()
                try:
                    await tx.execute(UPDATE, (1, other))
                except Retryable:
                    # Whoever swallows it commits nothing all the same.
                    with pytest.raises(StoreUnavailable):
                        await tx.execute(UPDATE, (100, one))
            outcomes.append("committed")
        except StoreUnavailable as failure:
            outcomes.append(failure.outcome)

    async with asyncio.TaskGroup() as group:
        group.create_task(cross("a", "b"))
        group.create_task(cross("b", "a"))
    assert sorted(outcomes) == ["committed", "not_executed"]
    assert await db.fetch_all(ALL) == [("a", 1), ("b", 1)]
    assert await nothing_half_open(servers)


async def test_a_lock_not_to_be_had_is_retryable_before_our_own_limit(url: str, db: Database, servers: Servers) -> None:
    async with db.transaction() as holder:
        await holder.execute(INSERT, ("a", 1))
        with pytest.raises(Retryable) as failure:
            async with db.transaction() as tx:
                await tx.execute(INSERT, ("b", 1))
                await tx.execute(INSERT, ("a", 2))
        assert failure.value.errno == 1205
        await holder.execute(UPDATE, (1, "a"))
    assert await db.fetch_all(ALL) == [("a", 2)]


async def test_a_read_only_server_refuses(servers: Servers, db: Database) -> None:
    await servers.mariadb.execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreRefused) as refusal:
            async with db.transaction() as tx:
                await tx.execute(INSERT, ("a", 1))
        assert refusal.value.code == "READ_ONLY"
        assert await db.fetch_all(COUNT) == [(0,)]
    finally:
        await servers.mariadb.execute("SET GLOBAL read_only = 0")


async def test_a_wrong_password_is_refused_and_not_shown(url: str) -> None:
    port = urlsplit(url).port
    db = await Database.open(settings_for(f"mysql://stockgate:sesame-open@127.0.0.1:{port}/stockgate"), name="stranger")
    with pytest.raises(StoreRefused) as refusal:
        await db.fetch_all(Statement("SELECT 1"))
    assert refusal.value.code == "ACCESS_DENIED"
    assert "sesame" not in "".join(traceback.format_exception(refusal.value))


# --- cancellation ---------------------------------------------------------------


async def test_a_cancelled_statement_returns_no_foreign_rows(url: str, db: Database, servers: Servers) -> None:
    one = await Database.open(settings_for(url), name="one session", pool_max=1)
    chance = random.Random(3)
    cancelled = 0
    for n in range(200):
        task = asyncio.create_task(one.fetch_all(Statement("SELECT %s"), (f"lost-{n}",)))
        # Every other one is cancelled within a few steps of the loop, before an answer can be here.
        for _ in range(n % 8 if n % 2 else 0):
            await asyncio.sleep(0)
        await asyncio.sleep(0 if n % 2 else chance.random() * 0.001)
        task.cancel()
        try:
            assert await task == [(f"lost-{n}",)]
        except asyncio.CancelledError:
            cancelled += 1
        assert await one.fetch_all(Statement("SELECT %s"), (f"mine-{n}",)) == [(f"mine-{n}",)]
    assert 0 < cancelled < 200, "both must have happened, however quick the machine is"
    await one.close()
    assert await nothing_half_open(servers)


async def test_a_cancelled_transaction_is_all_or_nothing(url: str, db: Database, servers: Servers) -> None:
    """Cancelled at any step, also during COMMIT: both rows or none, and the next one works."""
    two = await Database.open(settings_for(url), name="two sessions", pool_max=2)
    chance = random.Random(5)
    done = 0

    async def write(n: int) -> None:
        async with two.transaction() as tx:
            await tx.execute(INSERT, (f"a{n:03d}", n))
            await tx.execute_many(INSERT, [(f"b{n:03d}", n)])

    for n in range(150):
        task = asyncio.create_task(write(n))
        await asyncio.sleep(chance.random() * 0.006)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
            done += 1
        async with two.transaction() as tx:
            assert await tx.fetch_one(Statement("SELECT %s"), (n,)) == (n,)
    assert await nothing_half_open(servers)
    keys = {k for (k,) in await db.fetch_all(Statement("SELECT k FROM door"))}
    assert {k[1:] for k in keys if k[0] == "a"} == {k[1:] for k in keys if k[0] == "b"}
    assert 0 < done < 150
    assert len(keys) >= 2 * done
    await two.close()


# --- connections that die --------------------------------------------------------


async def test_a_lost_reply_to_commit_is_unknown(
    db: Database, fragile: Database, proxy: Proxy, servers: Servers
) -> None:
    with pytest.raises(StoreUnavailable) as failure:
        async with fragile.transaction() as tx:
            await tx.execute(INSERT, ("a", 1))
            proxy.drop_replies()
    assert (failure.value.store, failure.value.outcome) == ("mysql", "unknown")
    assert await db.fetch_all(ALL) == [("a", 1)]
    proxy.restore()
    assert await fragile.fetch_all(ALL) == [("a", 1)]
    assert await nothing_half_open(servers)


async def test_a_lost_reply_before_commit_is_not_executed(
    db: Database, fragile: Database, proxy: Proxy, servers: Servers
) -> None:
    for lose in (proxy.drop_replies, proxy.blackhole, proxy.cut):
        with pytest.raises(StoreUnavailable) as failure:
            async with fragile.transaction() as tx:
                await tx.execute(INSERT, ("a", 1))
                lose()
                await tx.execute(INSERT, ("b", 1))
        assert failure.value.outcome == "not_executed"
        proxy.restore()
        assert await nothing_half_open(servers)
        assert await db.fetch_all(COUNT) == [(0,)]


async def test_a_transaction_that_lost_its_connection_cannot_commit(fragile: Database, proxy: Proxy) -> None:
    with pytest.raises(StoreUnavailable) as failure:
        async with fragile.transaction() as tx:
            await tx.execute(INSERT, ("a", 1))
            proxy.cut()
            with pytest.raises(StoreUnavailable):
                await tx.execute(INSERT, ("b", 1))
    assert failure.value.outcome == "not_executed"


async def test_sessions_that_died_in_the_pool_are_replaced_unnoticed(
    db: Database, fragile: Database, proxy: Proxy
) -> None:
    async def use() -> None:
        assert await fragile.fetch_all(COUNT) == [(0,)]
        async with fragile.transaction() as tx:
            assert await tx.fetch_all(COUNT) == [(0,)]

    await asyncio.gather(*(use() for _ in range(4)))
    proxy.cut()
    await use()  # before the loop has seen the connections end
    proxy.cut()
    await asyncio.sleep(0.05)
    await asyncio.gather(*(use() for _ in range(4)))


async def test_mysql_away_and_back(servers: Servers, url: str, db: Database) -> None:
    away = await Database.open(settings_for(url), name="away")
    async with db.transaction() as tx:
        await tx.execute(INSERT, ("a", 1))
    with pytest.raises(StoreUnavailable) as failure:
        async with db.transaction() as tx:
            await tx.execute(INSERT, ("b", 1))
            await servers.mariadb.kill(signal.SIGKILL)
            await tx.execute(INSERT, ("c", 1))
    assert failure.value.outcome == "not_executed"
    for database in (away, db):
        with pytest.raises(StoreUnavailable) as failure:
            async with database.transaction():
                pass
        assert failure.value.outcome == "not_executed"
        with pytest.raises(StoreUnavailable):
            await database.fetch_all(ALL)
    await servers.mariadb.start()
    for database in (away, db):
        assert await database.fetch_all(ALL) == [("a", 1)]
    await away.close()


async def test_the_wait_for_a_session_is_limited(url: str, db: Database) -> None:
    one = await Database.open(settings_for(url, 200), name="one session", pool_max=1)
    async with one.transaction():
        with pytest.raises(StoreUnavailable) as failure:
            async with one.transaction():
                pass
        assert failure.value.outcome == "not_executed"
        with pytest.raises(StoreUnavailable):
            await one.fetch_all(ALL)
    assert await one.fetch_all(ALL) == []
    await one.close()


async def test_a_transaction_left_idle_is_killed_by_the_server(db: Database, servers: Servers) -> None:
    with pytest.raises(StoreUnavailable) as failure:
        async with db.transaction() as tx:
            await tx.execute(INSERT, ("a", 1))
            await asyncio.sleep(mysql_door.IDLE_TRANSACTION_S + 0.5)
            assert await nothing_half_open(servers)
            await tx.execute(INSERT, ("b", 1))
    assert failure.value.outcome == "not_executed"
    assert await db.fetch_all(COUNT) == [(0,)]


async def test_many_at_once_share_the_pool(url: str, db: Database, servers: Servers) -> None:
    small = await Database.open(settings_for(url), name="small", pool_max=3)

    async def write(n: int) -> None:
        async with small.transaction() as tx:
            await tx.execute(INSERT, (f"k{n}", n))

    await asyncio.gather(*(write(n) for n in range(60)))
    assert await small.fetch_all(COUNT) == [(60,)]
    sessions = await servers.mariadb.execute(
        f"SELECT COUNT(*) FROM information_schema.processlist WHERE db = '{DATABASE}'"
    )
    assert int(sessions) <= 3 + 1
    await small.close()
    with pytest.raises(StockgateError):
        await small.fetch_all(COUNT)


async def test_after_two_calls_without_an_answer_one_at_a_time_finds_out(
    db: Database, fragile: Database, proxy: Proxy, url: str
) -> None:
    assert await fragile.fetch_all(COUNT) == [(0,)]
    proxy.hold(b"")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="within"):
            await fragile.fetch_all(COUNT)
    finding_out = asyncio.create_task(fragile.fetch_all(COUNT))
    await asyncio.sleep(0)
    # More than there are places in the pool: none of them waits, or the last would be told that all are busy.
    for _ in range(20):
        with pytest.raises(StoreUnavailable, match="finds out") as failure:
            await fragile.fetch_all(COUNT)
        assert failure.value.outcome == "not_executed"
        with pytest.raises(StoreUnavailable, match="finds out"):
            async with fragile.transaction():
                pass
    assert not finding_out.done()
    proxy.restore()
    assert await finding_out == [(0,)]
    assert await asyncio.gather(*(fragile.fetch_all(COUNT) for _ in range(8))) == [[(0,)]] * 8


async def test_callers_with_limits_of_their_own_are_noticed_too(url: str, db: Database, proxy: Proxy) -> None:
    """Whoever gives up earlier than the door does has had no answer all the same."""
    patient = await Database.open(settings_for(proxy.url(url), 10_000), name="patient")
    assert await patient.fetch_all(COUNT) == [(0,)]
    proxy.hold(b"")

    async def impatient() -> None:
        async with asyncio.timeout(silence.GIVEN_UP_AFTER_S + 0.1):
            await patient.fetch_all(COUNT)

    given_up = await asyncio.gather(impatient(), impatient(), return_exceptions=True)
    assert [type(failure) for failure in given_up] == [TimeoutError, TimeoutError]
    finding_out = asyncio.create_task(patient.fetch_all(COUNT))
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="finds out"):
        await patient.fetch_all(COUNT)
    proxy.restore()
    assert await finding_out == [(0,)]
    assert await patient.fetch_all(COUNT) == [(0,)]
    await patient.close()


async def test_a_server_that_is_down_is_not_taken_for_one_that_hangs(fragile: Database, proxy: Proxy) -> None:
    await proxy.refuse()
    for _ in range(4):
        with pytest.raises(StoreUnavailable) as failure:
            await fragile.fetch_all(COUNT)
        assert "finds out" not in failure.value.detail
    await proxy.start()
    assert await fragile.fetch_all(COUNT) == [(0,)]


async def test_a_cancellation_that_the_driver_loses_is_raised_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wait_for` in the driver returns a connection that came together with the cancellation, and forgets the latter."""
    database = await Database.open(Settings(mysql_url=servers.mariadb.url), name="lost-cancellation")  # pyright: ignore[reportArgumentType]
    dialling, closed = asyncio.Event(), asyncio.Event()

    class Connected:
        def close(self) -> None:
            closed.set()

    async def connect(**_: Any) -> Connected:
        dialling.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return Connected()

    monkeypatch.setattr("asyncmy.connect", connect)
    task = asyncio.create_task(database.fetch_all(Statement("SELECT 1")))
    await dialling.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()
    await database.close()
