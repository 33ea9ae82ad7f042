"""Migrations on the real server: once, again, side by side, half done, changed, missing."""

import asyncio
import dataclasses

import pytest

import sql
from kernel.mysql_door import Database
from kernel.settings import Settings
from sql.migrate import migrate, run
from sql.migration_files import Migration, MigrationError, read_migration, read_migrations, split_statements
from stockgate.servers import Servers


def database_name(settings: Settings) -> str:
    return settings.mysql_url.get_secret_value().rpartition("/")[2]


async def tables(servers: Servers, settings: Settings) -> set[str]:
    return set((await servers.mariadb.execute(f"SHOW TABLES FROM {database_name(settings)}")).split())


async def test_the_first_time_makes_the_tables_and_the_second_time_nothing(servers: Servers, empty: Settings) -> None:
    names = [migration.name for migration in read_migrations()]
    assert await migrate(empty) == names
    found = await tables(servers, empty)
    assert {"shard", "inventory_balance", "inventory_ledger", "schema_migration"} <= found
    assert await migrate(empty) == []
    database = await Database.open(empty, name="test")
    ((number, _, _, _, _), *_) = await database.fetch_all(sql.load("select_schema_migrations"))
    assert number == 1
    ((shard_no, mode, *_),) = await database.fetch_all(sql.load("select_shard"), (0,))
    assert (shard_no, mode) == (0, "opening")
    await database.close()


async def test_two_migrators_at_once_do_the_work_once(empty: Settings) -> None:
    results = await asyncio.gather(*(migrate(empty) for _ in range(4)))
    assert sorted(map(len, results)) == [0, 0, 0, len(read_migrations())]


async def test_changed_file_is_refused(empty: Settings) -> None:
    await migrate(empty)
    first, *rest = read_migrations()
    with pytest.raises(MigrationError, match=rf"{first.name} was changed after it had been applied"):
        await migrate(empty, [dataclasses.replace(first, checksum="0" * 64), *rest])


async def test_database_of_a_newer_version_is_refused(empty: Settings) -> None:
    newer = read_migration("9999_of_tomorrow.sql", "CREATE TABLE tomorrow (a INT);")
    await migrate(empty, [*read_migrations(), newer])
    with pytest.raises(MigrationError, match=r"9999_of_tomorrow.*does not have"):
        await migrate(empty)


async def test_number_below_an_applied_one_is_refused(empty: Settings) -> None:
    later = read_migration("0009_later.sql", "CREATE TABLE later (a INT);")
    earlier = read_migration("0008_earlier.sql", "CREATE TABLE earlier (a INT);")
    await migrate(empty, [later])
    with pytest.raises(MigrationError, match=r"0008_earlier.*next free number"):
        await migrate(empty, [earlier, later])


async def test_failed_migration_says_where_and_goes_on_there(servers: Servers, empty: Settings) -> None:
    good = "CREATE TABLE one (a INT NOT NULL PRIMARY KEY); INSERT INTO one VALUES (1);"
    with pytest.raises(MigrationError, match=r"statement 3 of 3 of 0001_x\.sql failed.*nowhere"):
        await migrate(empty, [read_migration("0001_x.sql", good + "INSERT INTO nowhere VALUES (1);")])
    # The unfinished file is not frozen by what it did: but its text is, so the cause is mended elsewhere.
    await servers.mariadb.execute(f"CREATE TABLE {database_name(empty)}.nowhere (a INT)")
    assert await migrate(empty, [read_migration("0001_x.sql", good + "INSERT INTO nowhere VALUES (1);")])
    assert (await servers.mariadb.execute(f"SELECT COUNT(*) FROM {database_name(empty)}.one")).strip() == "1"
    assert (await servers.mariadb.execute(f"SELECT COUNT(*) FROM {database_name(empty)}.nowhere")).strip() == "1"


async def test_death_between_a_table_and_its_record_is_no_obstacle(servers: Servers, empty: Settings) -> None:
    migration = read_migration("0001_x.sql", "CREATE TABLE one (a INT); CREATE TABLE two (a INT);")
    await migrate(empty, [dataclasses.replace(migration, statements=migration.statements[:1])])
    # As a migrator leaves it that died after the second table was made and before that was recorded.
    name = database_name(empty)
    await servers.mariadb.execute(
        f"CREATE TABLE {name}.two (a INT); UPDATE {name}.schema_migration SET finished_ms = 0"
    )
    assert await migrate(empty, [migration]) == ["0001_x.sql"]
    assert await migrate(empty, [migration]) == []


async def test_table_that_was_there_before_the_first_migration_is_not_taken_over(
    servers: Servers, empty: Settings
) -> None:
    await servers.mariadb.execute(f"CREATE TABLE {database_name(empty)}.shard (a INT)")
    with pytest.raises(MigrationError, match=r"statement 1 .* already exists"):
        await migrate(empty)


def test_run_speaks_plainly(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    unreachable = Settings(mysql_url="mysql://nobody@127.0.0.1:1/none", _env_file=None)  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert run(unreachable) == 1
    assert "migrate: mysql: not_executed" in capsys.readouterr().out


def test_statements_are_split_where_they_end_and_nowhere_else() -> None:
    text = """
    -- a comment; with a semicolon and a ' quote
    CREATE TABLE a (b VARCHAR(9) DEFAULT 'x;''y'); # another; one
    INSERT INTO a VALUES ("p\\";q"), (`r;s`); /* and ; this */
    SELECT 1--2
    """
    assert list(split_statements(text)) == [
        "CREATE TABLE a (b VARCHAR(9) DEFAULT 'x;''y')",
        'INSERT INTO a VALUES ("p\\";q"), (`r;s`)',
        "SELECT 1--2",
    ]


@pytest.mark.parametrize("text", ["SELECT 'a", 'SELECT "a', "SELECT `a", "SELECT 1 /* a"])
def test_open_quote_is_refused(text: str) -> None:
    with pytest.raises(MigrationError, match="not closed"):
        list(split_statements(text))


@pytest.mark.parametrize("name", ["1_x.sql", "0001.sql", "0001_X.sql", "0001_x.txt"])
def test_file_name_without_a_number_is_refused(name: str) -> None:
    with pytest.raises(MigrationError, match="NNNN"):
        read_migration(name, "SELECT 1")


def test_every_file_is_taken_apart() -> None:
    migrations: list[Migration] = read_migrations()
    assert [migration.number for migration in migrations] == list(range(1, len(migrations) + 1))
    assert all(migration.statements for migration in migrations)
