"""Accounts: each may do what its statements need and nothing else, on a real server."""

import asyncio
import secrets
from collections.abc import Iterator

import pytest
from pydantic import SecretStr

import sql
from kernel.errors import StockgateError, StoreRefused
from kernel.mysql_door import Database, Statement
from kernel.settings import Settings
from sql.grant import GrantError, grant, read_grants
from sql.migrate import migrate
from stockgate.accounts import ROLES, RoleName
from stockgate.servers import Servers
from tests.as_role import as_role
from tests.sql.privileges import ROOT, grants_file, needed, needs, statements
from tests.sql.test_statements import filled_in

ALL = [*ROLES]


@pytest.fixture(scope="module")
def granted(servers: Servers) -> Iterator[Settings]:
    """A migrated database in which every account has its rights; the settings are the owner's."""
    name = f"stockgate_grants_{secrets.token_hex(3)}"
    base, _, _ = servers.mariadb.url.rpartition("/")
    settings = Settings(mysql_url=SecretStr(f"{base}/{name}"))

    async def make() -> None:
        await servers.mariadb.execute(f"CREATE DATABASE {name}")
        await migrate(settings)
        await grant(settings)
        await grant(settings)

    asyncio.run(make())
    yield settings
    asyncio.run(servers.mariadb.execute(f"DROP DATABASE {name}"))


async def refused(database: Database, statement: str) -> bool:
    """Whether the account is not allowed to; another error means that it is."""
    failure: StockgateError | None = None
    try:
        async with database.transaction() as transaction:
            await transaction.execute(Statement(statement))
            raise RollbackError
    except StockgateError as raised:
        failure = raised
    except RollbackError:
        return False
    return isinstance(failure, StoreRefused) and failure.code == "ACCESS_DENIED"


class RollbackError(Exception):
    """Nothing of what was tried stays."""


@pytest.mark.parametrize("role", ALL)
def test_the_file_of_grants_is_what_the_statements_need(role: RoleName) -> None:
    text = (ROOT / "sql" / "grants" / f"{role}.sql").read_text()
    assert text == grants_file(role, ROLES[role].account), (
        "run `python -m tests.sql.privileges` and look at the difference"
    )


def test_every_account_has_a_file_and_no_file_is_left_over() -> None:
    assert read_grants().keys() == ROLES.keys()


def test_what_was_done_is_written_once_and_never_changed() -> None:
    for role, lines in read_grants().items():
        for table in ("inventory_ledger", "operator_action", "operator_action_outcome"):
            words = [line for line in lines if f" ON {table} " in line]
            assert not any("UPDATE" in line or "DELETE" in line for line in words), (role, words)


@pytest.mark.parametrize("role", ALL)
async def test_an_account_may_run_its_statements_and_no_others(
    role: RoleName, servers: Servers, granted: Settings
) -> None:
    database = await Database.open(as_role(servers, granted, role), name="test", pool_max=1)
    names = {path.stem for path in (ROOT / "sql").glob("*.sql")}
    own = statements(role)
    try:
        kept_out = {name for name in names if await refused(database, filled_in(sql.load(name)))}
    finally:
        await database.close()
    missing = sorted(own & kept_out)
    assert not missing, "it is refused what it needs"
    changing = {name for name in names - own if not sql.load(name).startswith(("SELECT", "SET", "WITH"))}
    # A statement of others that needs no more than its own is no danger.
    allowed = {name for name in changing - kept_out if not _covered(role, name)}
    assert not allowed


def _covered(role: RoleName, name: str) -> bool:
    mine = needed(role)
    return all(
        place in mine and (mine[place] is None or (columns is not None and columns <= (mine[place] or set())))
        for place, columns in needs(name)
    )


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        # In db mode a gateway decides: it appends to the ledger, and never takes back what stands there.
        ("gateway", "UPDATE inventory_ledger SET qty = 0"),
        ("gateway", "DELETE FROM inventory_ledger"),
        ("gateway", "DELETE FROM inventory_order"),
        ("gateway", "UPDATE shard SET applied_term = 99"),
        ("gateway", "UPDATE operator_action SET reason = 'other'"),
        ("gateway", "DROP TABLE shard"),
        ("leader", "UPDATE inventory_ledger SET qty = 0"),
        ("leader", "DELETE FROM inventory_reservation"),
        ("leader", "UPDATE shard SET alarm = ''"),
        ("persist-worker", "UPDATE inventory_ledger SET qty = 0"),
        ("persist-worker", "DELETE FROM inventory_reservation"),
        ("persist-worker", "UPDATE shard SET term = 99"),
        ("persist-worker", "SELECT * FROM operator_action"),
        ("reconciler", "UPDATE inventory_balance SET held = 0"),
        ("reconciler", "UPDATE shard SET mode = 'db'"),
        ("operator", "DELETE FROM inventory_ledger"),
        ("operator", "DELETE FROM operator_action"),
        ("operator", "TRUNCATE TABLE stale_event"),
        *[(role, "CREATE TABLE mine (a INT)") for role in ALL],
        *[(role, "SELECT User FROM mysql.user") for role in ALL],
        *[(role, "GRANT SELECT ON shard TO 'stockgate_leader'") for role in ALL],
    ],
)
async def test_what_an_account_must_not_do_is_refused(
    role: RoleName, statement: str, servers: Servers, granted: Settings
) -> None:
    database = await Database.open(as_role(servers, granted, role), name="test", pool_max=1)
    try:
        assert await refused(database, statement)
    finally:
        await database.close()


async def test_the_server_knows_exactly_the_rights_of_the_files(servers: Servers, granted: Settings) -> None:
    name = granted.mysql_url.get_secret_value().rpartition("/")[2]
    found = await servers.mariadb.execute(
        "SELECT REPLACE(REPLACE(grantee, '\\'', ''), '@%', ''), table_name, privilege_type "
        f"FROM information_schema.table_privileges WHERE table_schema = '{name}'"
    )
    known = {tuple(line.split("\t")) for line in found.splitlines()}
    wanted: set[tuple[str, ...]] = set()
    for role, lines in read_grants().items():
        for line in lines:
            rights, _, rest = line.removeprefix("GRANT ").partition(" ON ")
            table = rest.partition(" ")[0]
            verbs = (right.strip() for right in rights.partition(" UPDATE (")[0].rstrip(",").split(","))
            wanted |= {(ROLES[role].account, table, verb) for verb in verbs}  # pyright: ignore[reportArgumentType]
    assert {row for row in known if row[0] in {role.account for role in ROLES.values()}} == wanted


async def test_an_account_that_does_not_exist_is_not_made_without_a_password(
    servers: Servers, granted: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sql.grant.read_grants", lambda: {"x": ("GRANT SELECT ON shard TO 'stockgate_nobody'",)})
    # The administrator could: MariaDB makes accounts by GRANT where it is not told otherwise.
    url = servers.mariadb.admin_url.rpartition("/")[0] + "/" + granted.mysql_url.get_secret_value().rpartition("/")[2]
    with pytest.raises(GrantError, match="no such account"):
        await grant(granted.model_copy(update={"mysql_url": SecretStr(url)}))
    assert await servers.mariadb.execute("SELECT User FROM mysql.user WHERE User = 'stockgate_nobody'") == ""
