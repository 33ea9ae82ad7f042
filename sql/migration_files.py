"""The migrations as files: how they are named, read and taken apart. Nothing here asks a server."""

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from kernel.errors import StockgateError
from kernel.mysql_door import Statement

_FILE_NAME = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")

_TOKEN = re.compile(
    r"""
      (?P<skip> --[ \t][^\n]*(?:\n|\Z) | --\n | \#[^\n]*(?:\n|\Z) | /\*(?!!).*?\*/ )
    | (?P<text> '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*` )
    | (?P<end> ; )
    | (?P<open> ['"`] | /\*(?!!) )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


class MigrationError(StockgateError):
    """The database and this version's migrations do not fit together; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    checksum: str
    statements: tuple[Statement, ...]


def split_statements(text: str) -> Iterator[str]:
    """The statements of a file, without comments. A semicolon within quotes or a comment ends nothing.

    Raises MigrationError on a quote or comment that is never closed.
    """
    parts: list[str] = []
    for token in _TOKEN.finditer(text):
        if token["open"]:
            raise MigrationError(f"a quote or comment is not closed: {text[token.start() : token.start() + 40]!r}")
        if token["end"] or token["skip"]:
            parts.append("\n" if token["skip"] else "")
        else:
            parts.append(token[0])
        if token["end"]:
            if statement := "".join(parts).strip():
                yield statement
            parts.clear()
    if statement := "".join(parts).strip():
        yield statement


def read_migration(name: str, text: str) -> Migration:
    """Take one file apart; raises MigrationError on a name or text that is none."""
    matched = _FILE_NAME.fullmatch(name)
    if matched is None:
        raise MigrationError(f"sql/migrations/{name}: a migration is called NNNN_what_it_does.sql")
    statements = tuple(Statement(statement) for statement in split_statements(text))
    return Migration(int(matched[1]), name, hashlib.sha256(text.encode()).hexdigest(), statements)


def read_migrations() -> list[Migration]:
    """All files of `sql/migrations` in order; raises MigrationError where two have one number."""
    folder = files("sql").joinpath("migrations")
    paths = sorted((path for path in folder.iterdir() if path.name.endswith(".sql")), key=lambda path: path.name)
    migrations = [read_migration(path.name, path.read_text(encoding="utf-8")) for path in paths]
    for before, after in itertools.pairwise(migrations):
        if before.number == after.number:
            raise MigrationError(f"{before.name} and {after.name} have the same number")
    return migrations
