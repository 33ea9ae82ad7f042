"""Whether MySQL or MariaDB is set up so that what it remembers stays: facts as the server tells them, then rules."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

import sql
from kernel import limits
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.doctor import Finding, Severity, Untold, clock_finding, clock_skew_ms, judged, version_tuple
from kernel.errors import StatementFailed, StoreRefused
from kernel.mysql_door import Database
from kernel.settings_watch import StoreCheck
from sql.migration_files import Migration, read_migrations

MARIADB_VERSION_MIN: Final = (10, 11)
MYSQL_VERSION_MIN: Final = (8, 0, 16)
DRIVER_VERSION_MIN: Final = (0, 2, 13)
LOCK_WAIT_S_MAX: Final = 5
PACKET_BYTES_MIN: Final = 2 * limits.RELAY_MESSAGE_BYTES_MAX
"""A parked event carries up to a message's bytes in one row, and escaped text can double."""

ID_COLUMNS: Final = (
    "tenant",
    "order_id",
    "inventory_key",
    "request_no",
    "ref",
    "buyer_id",
    "item_id",
    "fingerprint",
    "digest",
    "applied_digest",
)
"""Columns whose values are compared for being the same: as the scripts do it, byte for byte."""
ID_COLLATIONS: Final = frozenset({"ascii_bin", "binary"})


@dataclass(frozen=True, slots=True)
class MysqlFacts:
    """What the server says. Untold where this account may not ask."""

    version: str
    flush_log_at_trx_commit: int
    log_bin: bool
    sync_binlog: int
    binlog_format: str
    max_allowed_packet: int
    read_only: bool
    sql_mode: str
    time_zone: str
    lock_wait_s: int
    isolation: str
    wsrep_on: bool
    clock_skew_ms: int
    migrations_wrong: tuple[str, ...] | Untold
    migrations_newer: tuple[str, ...] | Untold
    """Files that this version does not have: a newer one has migrated."""
    wrong_collations: tuple[str, ...]
    driver_version: str

    @property
    def is_mariadb(self) -> bool:
        """Which of the two servers it is."""
        return "mariadb" in self.version.lower()


async def read_mysql_facts(database: Database, clock: Clock = SYSTEM_CLOCK) -> MysqlFacts:
    """Ask in a session like all others of this process. Raises what `Database.fetch_all` raises."""
    before_ms = clock.now_ms()
    (row,) = await database.fetch_all(sql.load("select_server_settings"))
    after_ms = clock.now_ms()
    version, flush, log_bin, sync_binlog, binlog_format, packet, read_only, *session = row
    sql_mode, time_zone, lock_wait_s, now_ms, isolation, wsrep_on = session
    columns = await database.fetch_all(sql.load("select_column_collations"), (ID_COLUMNS,))
    wrong, newer = await _migrations(database)
    return MysqlFacts(
        version=str(version),
        flush_log_at_trx_commit=int(flush),
        log_bin=_on(log_bin),
        sync_binlog=int(sync_binlog),
        binlog_format=str(binlog_format),
        max_allowed_packet=int(packet),
        read_only=_on(read_only),
        sql_mode=str(sql_mode),
        time_zone=str(time_zone),
        lock_wait_s=int(lock_wait_s),
        isolation=str(isolation),
        wsrep_on=_on(wsrep_on),
        clock_skew_ms=clock_skew_ms(int(now_ms), before_ms, after_ms),
        migrations_wrong=wrong,
        migrations_newer=newer,
        wrong_collations=tuple(
            f"{table}.{column} {collation}" for table, column, collation in columns if collation not in ID_COLLATIONS
        ),
        driver_version=metadata.version("asyncmy"),
    )


async def check_mysql(database: Database, clock: Clock = SYSTEM_CLOCK) -> list[Finding]:
    """Every finding about MySQL; raises what `Database.fetch_all` raises."""
    return judge_mysql(await read_mysql_facts(database, clock))


def watched_mysql(database: Database) -> StoreCheck:
    """The check again and again, in a session of the pool."""
    return StoreCheck("mysql", lambda: check_mysql(database), lambda: database.generation)


def judge_mysql(facts: MysqlFacts) -> list[Finding]:
    """The rules."""
    return [*_server(facts), *_session(facts), *_tables(facts), clock_finding("mysql", facts.clock_skew_ms)]


def _server(facts: MysqlFacts) -> list[Finding]:
    version_min = MARIADB_VERSION_MIN if facts.is_mariadb else MYSQL_VERSION_MIN
    return [
        judged(
            "mysql.version",
            facts.version,
            lambda version: version_tuple(version) >= version_min,
            wanted="MySQL 8.0.16 or MariaDB 10.11, or later",
            why="older servers read the tables' checks without holding them, or lack what the statements use",
            mend="upgrade the server",
        ),
        judged(
            "mysql.flush_log_at_trx_commit",
            facts.flush_log_at_trx_commit,
            lambda value: value == 1,
            wanted="1",
            why="with 0 or 2 a commit is not on disk when the queue is told to forget the events in it",
            mend=_global("innodb_flush_log_at_trx_commit", "1"),
        ),
        judged(
            "mysql.sync_binlog",
            facts.sync_binlog,
            lambda value: value == 1 or not facts.log_bin,
            shown=str(facts.sync_binlog) if facts.log_bin else "no binary log",
            wanted="1 where there is a binary log",
            why="a commit that the binary log lost in a crash is rolled back when the server recovers",
            mend=_global("sync_binlog", "1"),
        ),
        judged(
            "mysql.binlog_format",
            facts.binlog_format,
            lambda value: value == "ROW" or not facts.log_bin,
            shown=facts.binlog_format if facts.log_bin else "no binary log",
            wanted="ROW where there is a binary log",
            why="READ COMMITTED is only replicated truly row by row; with STATEMENT the server refuses our writes",
            mend=_global("binlog_format", "'ROW'"),
        ),
        judged(
            "mysql.max_allowed_packet",
            facts.max_allowed_packet,
            lambda size: size >= PACKET_BYTES_MIN,
            wanted=f"{PACKET_BYTES_MIN} bytes or more",
            why="an event that does not fit into one packet cannot be stored, and the shard stops at it",
            mend=_global("max_allowed_packet", "67108864"),
        ),
        judged(
            "mysql.read_only",
            facts.read_only,
            lambda on: not on,
            shown="ON" if facts.read_only else "OFF",
            wanted="OFF",
            why="a replica takes no writes: nothing that is sold would be remembered",
            mend="point STOCKGATE_MYSQL_URL at the primary, or " + _global("read_only", "OFF"),
        ),
        judged(
            "mysql.wsrep_on",
            facts.wsrep_on,
            lambda on: not on,
            shown="ON" if facts.wsrep_on else "OFF",
            wanted="OFF",
            why="in a Galera cluster row locks do not reach other nodes, and the order of commits rests on one row's lock",
            mend="use a server of its own: `wsrep_on = OFF` under [mysqld] in my.cnf, then restart",
        ),
    ]


def _session(facts: MysqlFacts) -> list[Finding]:
    ours = "our sessions set it: a proxy between us and the server undoes it; connect to the server itself"
    return [
        judged(
            "mysql.sql_mode",
            facts.sql_mode,
            lambda mode: bool({"STRICT_TRANS_TABLES", "STRICT_ALL_TABLES"} & set(mode.split(","))),
            wanted="with STRICT_TRANS_TABLES, in our sessions",
            why="without it a quantity that is out of range is clamped instead of refused",
            mend=ours,
        ),
        judged(
            "mysql.isolation",
            facts.isolation,
            lambda value: value.replace(" ", "-") == "READ-COMMITTED",
            wanted="READ-COMMITTED, in our sessions",
            why="REPEATABLE READ reads an old snapshot while it writes to the newest rows, and locks the gaps between",
            mend=ours,
        ),
        judged(
            "mysql.time_zone",
            facts.time_zone,
            lambda value: value in {"+00:00", "UTC"},
            wanted="+00:00, in our sessions",
            why="times without a zone are UTC here; in another one they are wrong by hours, twice a year by one more",
            mend=ours,
        ),
        judged(
            "mysql.lock_wait_timeout",
            facts.lock_wait_s,
            lambda seconds: seconds <= LOCK_WAIT_S_MAX,
            shown=f"{facts.lock_wait_s} s",
            wanted=f"{LOCK_WAIT_S_MAX} s or less, in our sessions",
            why="who waits longer for a lock is hung up on, and nobody knows what became of the transaction",
            mend="set STOCKGATE_MYSQL_TIMEOUT_MS to 6000 or less: the session's limit is a second below it",
            severity=Severity.WARNING,
        ),
        judged(
            "mysql.driver_version",
            facts.driver_version,
            lambda version: version_tuple(version) >= DRIVER_VERSION_MIN,
            wanted="asyncmy 0.2.13 or later",
            why="older ones hand the late reply of a cancelled query to the next caller, and quote parameters wrongly",
            mend="`pip install --require-hashes -r requirements.lock`",
        ),
    ]


def _tables(facts: MysqlFacts) -> list[Finding]:
    return [
        judged(
            "mysql.migrations",
            facts.migrations_wrong,
            lambda wrong: not wrong,
            shown=_listed(facts.migrations_wrong, "up to date"),
            wanted="each applied to its end, as this version has it",
            why="statements would name tables and columns that are not there, or not what they were",
            mend="`stockgate migrate`",
        ),
        judged(
            "mysql.migrations_newer",
            facts.migrations_newer,
            lambda newer: not newer,
            shown=_listed(facts.migrations_newer, "none"),
            wanted="none that this version does not know",
            why="a newer version has migrated: this one may go on meanwhile, and should be replaced soon",
            mend="run the version that has migrated the database",
            severity=Severity.WARNING,
        ),
        judged(
            "mysql.id_collations",
            facts.wrong_collations,
            lambda wrong: not wrong,
            shown=_listed(facts.wrong_collations, "ascii_bin"),
            wanted="ascii_bin in every column that holds an id",
            why="under another collation two ids that Redis tells apart are one row in MySQL",
            mend="`ALTER TABLE <table> MODIFY <column> … CHARACTER SET ascii COLLATE ascii_bin …`, "
            "its other words as in sql/migrations",
        ),
    ]


def judge_migrations(
    known: Sequence[Migration], rows: Sequence[tuple[Any, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is wrong about the migrations, and which ones a newer version has applied.

    `rows` as `select_schema_migrations` gives them: number, name, checksum, statements done, finished_ms.
    """
    applied = {number: (checksum, finished_ms) for number, _, checksum, _, finished_ms in rows}
    wrong: list[str] = []
    for migration in known:
        checksum, finished_ms = applied.get(migration.number, ("", 0))
        if not checksum:
            wrong.append(f"{migration.name} is missing")
        elif not finished_ms:
            wrong.append(f"{migration.name} is half done")
        elif checksum != migration.checksum:
            wrong.append(f"{migration.name} was changed after it was applied")
    numbers = {migration.number for migration in known}
    return tuple(wrong), tuple(str(name) for number, name, *_ in rows if number not in numbers)


async def _migrations(database: Database) -> tuple[tuple[str, ...] | Untold, tuple[str, ...] | Untold]:
    known = read_migrations()
    try:
        rows = await database.fetch_all(sql.load("select_schema_migrations"))
    except StoreRefused as refused:
        if refused.code != "ACCESS_DENIED":
            raise
        untold = Untold("let the account read: `GRANT SELECT ON <database>.schema_migration TO <user>`")
        return untold, untold
    except StatementFailed as failure:
        if failure.errno != _NO_SUCH_TABLE:
            raise
        rows = []
    return judge_migrations(known, rows)


_NO_SUCH_TABLE: Final = 1146


def _listed(names: tuple[str, ...] | Untold, none: str) -> str:
    return ", ".join(names) if isinstance(names, tuple) and names else none


def _on(value: object) -> bool:
    return str(value).upper() in {"1", "ON"}


def _global(name: str, value: str) -> str:
    return f"`SET GLOBAL {name} = {value}`, and `{name} = {value.strip(chr(39))}` under [mysqld] in my.cnf"
