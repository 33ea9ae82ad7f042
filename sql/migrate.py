"""Brings the database to the tables this version needs: numbered files, each applied once, in order.

A migration is a file `sql/migrations/NNNN_name.sql`. It is split into statements, because each is recorded when it
is done: DDL commits by itself, so a migrator that dies in the middle goes on with the statement it died in. A file that
was applied is never edited: its checksum is in the database, and another text under the same number is refused.
"""

import asyncio
from collections.abc import Sequence

import sql
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.errors import StockgateError
from kernel.mysql_door import Database, Transaction
from kernel.settings import Settings
from sql.migration_files import Migration, MigrationError, read_migrations

LOCK_WAIT_S = 60.0
"""How long a migrator waits for another one before it gives up."""

STATEMENT_TIMEOUT_MS = 600_000
"""An ALTER of a large table may take long; without a limit a dead server would hang the migrator for ever."""

_ALREADY_THERE = frozenset({1050, 1060, 1061, 1091})
"""Table, column or index exists, or what is to be dropped is gone: the statement had been done before the last death."""


async def migrate(
    settings: Settings, migrations: Sequence[Migration] | None = None, clock: Clock = SYSTEM_CLOCK
) -> list[str]:
    """Apply what is missing and return the names of the files that were applied, or finished.

    Safe to run in several processes at once: a server-wide named lock lets one go first, the others find its work
    done. Raises MigrationError, and StoreUnavailable when MySQL cannot be reached.
    """
    wanted = read_migrations() if migrations is None else migrations
    patient = settings.model_copy(update={"mysql_timeout_ms": STATEMENT_TIMEOUT_MS})
    database = await Database.open(patient, name="migrate", pool_max=2)
    try:
        # The lock belongs to the first connection, which does nothing else; a second one works. An ALTER can then
        # not be mistaken for an idle transaction, and the lock goes with its connection however this process ends.
        async with database.transaction() as lock_holder:
            await _take_lock(lock_holder, clock)
            async with database.transaction() as transaction:
                await transaction.execute(sql.load("create_schema_migration"))
            over = asyncio.Event()
            keeper = asyncio.create_task(_keep_alive(lock_holder, over))
            try:
                return await _apply_missing(database, wanted, clock)
            finally:
                # Not cancelled: a statement that is cut short takes its connection, and the lock, with it.
                over.set()
                await asyncio.gather(keeper, return_exceptions=True)
    finally:
        await database.close()


async def _take_lock(transaction: Transaction, clock: Clock) -> None:
    deadline = clock.monotonic() + LOCK_WAIT_S
    while True:
        row = await transaction.fetch_one(sql.load("take_migration_lock"))
        if row is not None and row[0] == 1:
            return
        if clock.monotonic() > deadline:
            raise MigrationError(f"another migrator has held the lock for {LOCK_WAIT_S:.0f} s; is one hanging?")


async def _keep_alive(transaction: Transaction, over: asyncio.Event) -> None:
    """A transaction that is idle for some seconds is killed by the server, and the lock would go with it."""
    while not over.is_set():
        try:
            async with asyncio.timeout(1.0):
                await over.wait()
        except TimeoutError:
            await transaction.fetch_one(sql.load("select_one"))


async def _apply_missing(database: Database, wanted: Sequence[Migration], clock: Clock) -> list[str]:
    rows = await database.fetch_all(sql.load("select_schema_migrations"))
    applied = {number: (name, checksum, done, finished) for number, name, checksum, done, finished in rows}
    _check(wanted, {number: (name, checksum) for number, (name, checksum, _, _) in applied.items()})
    names: list[str] = []
    for migration in wanted:
        _, _, done, finished = applied.get(migration.number, ("", "", 0, 0))
        if not finished:
            await _apply(database, migration, done, clock, resumed=migration.number in applied)
            names.append(migration.name)
    return names


def _check(wanted: Sequence[Migration], applied: dict[int, tuple[str, str]]) -> None:
    known = {migration.number: migration for migration in wanted}
    for number, (name, checksum) in applied.items():
        migration = known.get(number)
        if migration is None:
            raise MigrationError(
                f"the database has migration {number:04d} ({name}), which this version does not have: "
                "a newer version has migrated it; run that one"
            )
        if migration.checksum != checksum:
            raise MigrationError(
                f"migration {migration.name} was changed after it had been applied: "
                "restore its text and put the change into a new file with the next number"
            )
    missing = [migration for migration in wanted if migration.number not in applied]
    if missing and applied and missing[0].number < max(applied):
        raise MigrationError(
            f"migration {missing[0].name} is missing in the database although {max(applied):04d} is applied: "
            "give it the next free number"
        )


async def _apply(database: Database, migration: Migration, done: int, clock: Clock, *, resumed: bool) -> None:
    if not resumed:
        async with database.transaction() as transaction:
            await transaction.execute(
                sql.load("insert_schema_migration"), (migration.number, migration.name, migration.checksum)
            )
    for position in range(done, len(migration.statements)):
        async with database.transaction() as transaction:
            try:
                await transaction.execute(migration.statements[position])
            except StockgateError as error:
                # Only the statement that a dead migrator may have been in can have been done without a record.
                if not (resumed and position == done and getattr(error, "errno", None) in _ALREADY_THERE):
                    raise MigrationError(
                        f"statement {position + 1} of {len(migration.statements)} of {migration.name} failed: {error}. "
                        "What came before it is done; mend the cause and migrate again"
                    ) from error
            # DDL has committed itself by now; DML and this record become durable together.
            finished_ms = clock.now_ms() if position + 1 == len(migration.statements) else 0
            await transaction.execute(
                sql.load("update_schema_migration"), (position + 1, finished_ms, migration.number)
            )


def run(settings: Settings) -> int:
    """Migrate and say in plain words what was done. The process's exit code: 0, or 1 with the reason."""
    try:
        names = asyncio.run(migrate(settings))
    except StockgateError as error:
        print(f"migrate: {error}")  # noqa: T201 -- the command's answer to the person who typed it
        return 1
    for name in names:
        print(f"migrate: {name} applied")  # noqa: T201 -- as above
    print("migrate: the database is up to date")  # noqa: T201 -- as above
    return 0
