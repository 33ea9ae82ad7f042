"""The audit sees a ledger that does not give the balance: each quantity for itself, on the real server."""

from collections.abc import AsyncGenerator

import pytest

import sql
from kernel.mysql_door import Database, Statement
from kernel.settings import Settings

QUANTITIES = ("available", "reserved", "sold", "consumed", "locked")
BALANCE = Statement(
    "INSERT INTO inventory_balance (inventory_key, shard_no, available, reserved, sold, consumed, locked, total, seq)"
    " VALUES ('a', 0, 2, 2, 2, 2, 2, 10, 1)"
)
LEDGER = Statement(
    "INSERT INTO inventory_ledger VALUES ('a', 1, 0, 1, 1, 11, 't', 'r', 0, 10, %s, %s, %s, %s, %s,"
    " 2, 2, 2, 2, 2, 1, 0, 0, '', '', '')"
)
AUDIT = sql.load("audit_ledger_against_balances")


@pytest.fixture
async def database(migrated: Settings) -> AsyncGenerator[Database]:
    database = await Database.open(migrated, name="test")
    yield database
    async with database.transaction() as transaction:
        for table in ("inventory_ledger", "inventory_balance"):
            await transaction.execute(Statement(f"DELETE FROM {table}"))
    await database.close()


async def found(database: Database, deltas: list[int]) -> list[tuple[object, ...]]:
    async with database.transaction() as transaction:
        await transaction.execute(BALANCE)
        await transaction.execute(LEDGER, deltas)
    return await database.fetch_all(AUDIT, (0, 10))


async def test_a_ledger_that_gives_the_balance_is_no_finding(database: Database) -> None:
    assert await found(database, [2, 2, 2, 2, 2]) == []


@pytest.mark.parametrize("wrong", range(5), ids=QUANTITIES)
async def test_a_quantity_that_the_deltas_do_not_give_is_found(database: Database, wrong: int) -> None:
    deltas = [3 if at == wrong else 2 for at in range(5)]
    assert [row[0] for row in await found(database, deltas)] == ["a"]
