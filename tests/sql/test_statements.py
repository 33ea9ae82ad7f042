"""Every statement: its header is true, the real server prepares and explains it, and MySQL 8 would parse it."""

import re
from pathlib import Path

import pytest
import sqlglot

import sql
from kernel.mysql_door import Database, Statement
from kernel.settings import Settings

FOLDER = Path(sql.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.sql"))
MIGRATIONS = sorted((FOLDER / "migrations").glob("*.sql"))
LIST = re.compile(r"\bIN %s", re.IGNORECASE)
PAIRS = re.compile(r"\(\s*[\w.]+\s*,\s*[\w.]+\s*\)\s+IN %s", re.IGNORECASE)
TRIPLES = re.compile(r"\(\s*[\w.]+\s*,\s*[\w.]+\s*,\s*[\w.]+\s*\)\s+IN %s", re.IGNORECASE)
LOCK_WORDS = re.compile(r"\b(no lock|takes no|without locks?|needs no)\b", re.IGNORECASE)


def header(name: str) -> tuple[str, str]:
    first, second = (FOLDER / f"{name}.sql").read_text().splitlines()[:2]
    return first, second


def filled_in(statement: str) -> str:
    """The statement with plain values for its parameters."""
    text = TRIPLES.sub(lambda found: found[0].replace("%s", "((1, 1, 1))"), statement)
    text = PAIRS.sub(lambda found: found[0].replace("%s", "(('1', '1'))"), text)
    text = LIST.sub("IN ('1')", text)
    return text.replace("%s", "1").replace("%%", "%")


def verb(statement: str) -> str:
    return statement.split(None, 1)[0].upper()


@pytest.mark.parametrize("name", NAMES)
async def test_server_explains_it(name: str, migrated: Settings) -> None:
    statement = filled_in(sql.load(name))
    database = await Database.open(migrated, name="test")
    if verb(statement) in {"CREATE", "SET", "DO"}:
        async with database.transaction() as transaction:
            await transaction.execute(Statement(statement))
    else:
        rows = await database.fetch_all(Statement(f"EXPLAIN {statement}"))
        assert rows, name
    await database.close()


@pytest.mark.parametrize("name", NAMES)
async def test_server_prepares_it(name: str, migrated: Settings) -> None:
    statement = LIST.sub(
        lambda found: found[0].replace("%s", "((?, ?))" if PAIRS.search(sql.load(name)) else "(?)"), sql.load(name)
    )
    text = statement.replace("%s", "?").replace("%%", "%").replace("'", "''")
    database = await Database.open(migrated, name="test")
    async with database.transaction() as transaction:
        await transaction.execute(Statement(f"PREPARE tried FROM '{text}'"))
    await database.close()


@pytest.mark.parametrize("name", NAMES)
def test_mysql_8_would_parse_it(name: str) -> None:
    parsed = sqlglot.parse(filled_in(sql.load(name)), read="mysql", error_level=sqlglot.ErrorLevel.RAISE)
    assert len(parsed) == 1


@pytest.mark.parametrize("path", MIGRATIONS, ids=lambda path: path.name)
def test_mysql_8_would_parse_the_migration(path: Path) -> None:
    assert sqlglot.parse(path.read_text(), read="mysql", error_level=sqlglot.ErrorLevel.RAISE)


@pytest.mark.parametrize("name", NAMES)
def test_name_begins_with_what_it_does(name: str) -> None:
    statement = sql.load(name)
    verbs = {
        "insert": {"INSERT"},
        "upsert": {"INSERT"},
        "record": {"INSERT"},
        "update": {"UPDATE"},
        "delete": {"DELETE"},
        "create": {"CREATE"},
        "select": {"SELECT", "WITH"},
        "count": {"SELECT"},
        "audit": {"SELECT", "WITH"},
        "find": {"SELECT"},
        "lock": {"SELECT"},
        "take": {"SELECT"},
        "set": {"SET"},
    }
    first = name.split("_", 1)[0]
    assert first in verbs, f"begin {name} with one of {sorted(verbs)}"
    assert verb(statement) in verbs[first]
    assert first != "upsert" or "ON DUPLICATE KEY UPDATE" in statement


@pytest.mark.parametrize("name", NAMES)
def test_header_tells_the_truth_about_locks(name: str) -> None:
    statement, (_, second) = sql.load(name), header(name)
    locks = re.search(r"\bFOR UPDATE\b|\bLOCK IN SHARE MODE\b", statement)
    if locks:
        assert re.search(r"\block\b|\blocks\b|\blocked\b", second, re.IGNORECASE), "it locks: say what"
        assert not LOCK_WORDS.search(second)


@pytest.mark.parametrize("name", NAMES)
async def test_index_that_the_header_names_exists(name: str, migrated: Settings) -> None:
    """What a header calls by a name of ours is an index, a table or a column that exists."""
    _, second = header(name)
    database = await Database.open(migrated, name="test")
    known: set[str] = set()
    for what, where in (("index_name", "statistics"), ("table_name", "tables"), ("column_name", "columns")):
        rows = await database.fetch_all(
            Statement(f"SELECT DISTINCT {what} FROM information_schema.{where} WHERE table_schema = DATABASE()")
        )
        known.update(row[0] for row in rows)
    await database.close()
    named = set(re.findall(r"\b(?:inventory|stale|shard|schema|product|supply|outbox)_[a-z_]+\b", second))
    assert named <= known, f"{named - known} is no index, table or column"
