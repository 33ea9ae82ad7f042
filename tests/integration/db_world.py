"""A database in which MySQL decides: the shard's row in mode db, keys to sell, and any number of gateways' paths."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic import SecretStr

from inventory.audit import audit
from inventory.db_path import DbPath
from inventory.events import genesis
from inventory.hot_path import Failure
from inventory.moves import Quantities
from inventory.operations import Operation, Result
from kernel.mysql_door import Database, Statement
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from sql.migrate import migrate
from stockgate.servers import Servers

EPOCH = 4
TERM = 7


class DbWorld:
    """Use as `async with DbWorld.open(servers) as world`."""

    def __init__(self, servers: Servers, name: str, settings: Settings, database: Database, path: DbPath) -> None:
        self._servers = servers
        self._name = name
        self.settings = settings
        self.database = database
        self.path = path

    @classmethod
    @asynccontextmanager
    async def open(cls, servers: Servers, **changed: Any) -> AsyncGenerator["DbWorld"]:
        if not servers.mariadb.alive():
            await servers.mariadb.start()
        name = f"stockgate_db_{secrets.token_hex(4)}"
        await servers.mariadb.execute(f"CREATE DATABASE {name}")
        values: dict[str, Any] = {
            "mysql_url": SecretStr(f"{servers.mariadb.url.rpartition('/')[0]}/{name}"),
            "redis_url": servers.redis.url,
            "hold_grace_ms": 0,
            **changed,
        }
        settings = Settings(**values)
        await migrate(settings)
        database = await Database.open(settings, name="test")
        world = cls(servers, name, settings, database, DbPath(settings, database, 0))
        await world.set_mode("db")
        try:
            yield world
        finally:
            await database.close()
            await servers.mariadb.execute(f"DROP DATABASE {name}")

    async def set_mode(self, mode: str, *, since_ms: int = 0) -> None:
        await self.sql(
            "UPDATE shard SET mode = %s, epoch = %s, term = %s, applied_m = 0, applied_digest = %s, since_ms = %s",
            (mode, EPOCH, TERM, genesis(0, EPOCH), since_ms),
        )

    @asynccontextmanager
    async def gateways(self, count: int, *, settings: Settings | None = None) -> AsyncGenerator[list[DbPath]]:
        """Paths of several processes, each with sessions of its own."""
        settings = settings or self.settings
        async with AsyncExitStack() as stack:
            paths: list[DbPath] = []
            for number in range(count):
                database = await Database.open(settings, name=f"gateway-{number}", pool_max=2)
                stack.push_async_callback(database.close)
                paths.append(DbPath(settings, database, 0))
            yield paths

    async def call(self, *ops: Operation) -> list[Result | Failure]:
        return (await self.path.call(ops)).decisions

    async def decide(self, op: Operation) -> Result:
        [result] = await self.call(op)
        assert isinstance(result, Result), result
        return result

    # --- what is there ----------------------------------------------------------------------------------------------------

    async def sql(self, text: str, params: Sequence[Any] = ()) -> int:
        async with self.database.transaction() as transaction:
            return await transaction.execute(Statement(text), params)

    async def rows(self, text: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return await self.database.fetch_all(Statement(text), params)

    async def stock(self, **available: int) -> None:
        """Make keys with this much to sell, each by one ADJUST before this epoch, as the audit wants it."""
        async with self.database.transaction() as transaction:
            await transaction.execute_many(
                Statement(
                    "INSERT INTO inventory_balance (inventory_key, shard_no, available, total, seq) VALUES (%s, 0, %s, %s, 1)"
                ),
                [(key, units, units) for key, units in available.items()],
            )
            await transaction.execute_many(
                Statement(
                    "INSERT INTO inventory_ledger VALUES"
                    " (%s, 1, 0, 1, 1, 8, 'shop', 'begin', 0, %s, %s, 0, 0, 0, 0, %s, 0, 0, 0, 0, 0, 0, 1, '', '', '')"
                ),
                [(key, units, units, units) for key, units in available.items()],
            )

    async def balance(self, key: str) -> Quantities:
        [row] = await self.rows(
            "SELECT available, reserved, sold, consumed, locked FROM inventory_balance WHERE inventory_key = %s", (key,)
        )
        return Quantities(*row)

    async def image(self) -> list[list[tuple[Any, ...]]]:
        """Everything that decisions write, to compare before and after."""
        return [
            await self.rows("SELECT * FROM inventory_balance ORDER BY 1"),
            await self.rows("SELECT * FROM inventory_order ORDER BY 1, 2"),
            await self.rows("SELECT * FROM inventory_reservation ORDER BY 1, 2, 3"),
            await self.rows("SELECT * FROM inventory_request ORDER BY 1, 2"),
            await self.rows("SELECT * FROM inventory_ledger ORDER BY 1, 2"),
        ]

    async def statements_that_wait(self) -> list[str]:
        """What sessions of this database wait with for somebody's lock."""
        answer = await self._servers.mariadb.execute(
            "SELECT REPLACE(t.trx_query, '\\n', ' ') FROM information_schema.innodb_trx t"
            " JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id"
            f" WHERE t.trx_state = 'LOCK WAIT' AND p.db = '{self._name}'"
        )
        return answer.splitlines()

    async def violations(self) -> dict[str, list[dict[str, Any]]]:
        """What the audit finds, by check."""
        redis = RedisDoor.open(self.settings, name="audit")
        checks = await audit(self.database, redis, 0)
        await redis.close()
        return {check.name: check.violations for check in checks if check.violations}
