"""Gives the accounts of our processes their rights in one database: `sql/grants/<role>.sql`, one account to a file.

Accounts are made by whoever runs the server; a right is never taken away here, because a process that runs an older
version may still need it.
"""

import asyncio
from importlib.resources import files
from typing import Final

import sql
from kernel.errors import StatementFailed, StockgateError
from kernel.mysql_door import Database, Statement
from kernel.settings import Settings
from sql.migration_files import split_statements

_NO_SUCH_ACCOUNT: Final = frozenset({1133, 1410})


class GrantError(StockgateError):
    """A right could not be given; the message says which, and what to do."""


def read_grants() -> dict[str, tuple[str, ...]]:
    """The statements of each kind of process, by its name."""
    paths = sorted(files("sql").joinpath("grants").iterdir(), key=lambda path: path.name)
    return {
        path.name.removesuffix(".sql"): tuple(split_statements(path.read_text(encoding="utf-8")))
        for path in paths
        if path.name.endswith(".sql")
    }


async def grant(settings: Settings) -> list[str]:
    """Give every account its rights in the database of `settings.mysql_url`; the names of the kinds of process.

    May be done again, and while processes run. Raises GrantError for an account that does not exist or a right that the
    caller cannot give, StoreUnavailable when MySQL cannot be reached.
    """
    grants = read_grants()
    database = await Database.open(settings, name="grant", pool_max=1)
    try:
        async with database.transaction() as transaction:
            await transaction.execute(sql.load("set_no_auto_created_users"))
            for statement in (statement for statements in grants.values() for statement in statements):
                try:
                    await transaction.execute(Statement(statement))
                except StatementFailed as error:
                    if error.errno in _NO_SUCH_ACCOUNT:
                        raise GrantError(f"{statement}: there is no such account, make it first") from error
                    raise GrantError(f"{statement}: {error}") from error
    finally:
        await database.close()
    return list(grants)


def run(settings: Settings) -> int:
    """Grant and say so in plain words. The command's exit code: 0, or 1 with the reason."""
    try:
        names = asyncio.run(grant(settings))
    except StockgateError as error:
        print(f"grants: {error}")  # noqa: T201 -- the command's answer to the person who typed it
        return 1
    print(f"grants: {', '.join(names)} have their rights")  # noqa: T201 -- as above
    return 0
