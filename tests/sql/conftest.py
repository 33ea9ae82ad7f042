"""Databases of their own on the run's MariaDB."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator

import pytest
from pydantic import SecretStr

from kernel.settings import Settings
from sql.migrate import migrate
from stockgate.servers import Servers


def settings_for(servers: Servers, name: str) -> Settings:
    base, _, _ = servers.mariadb.url.rpartition("/")
    return Settings(mysql_url=SecretStr(f"{base}/{name}"), _env_file=None)  # pyright: ignore[reportCallIssue]


@pytest.fixture
async def empty(servers: Servers) -> AsyncGenerator[Settings]:
    """Settings that name a new, empty database."""
    name = f"stockgate_{secrets.token_hex(6)}"
    await servers.mariadb.execute(f"CREATE DATABASE {name}")
    yield settings_for(servers, name)
    await servers.mariadb.execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="module")
def migrated(servers: Servers) -> Iterator[Settings]:
    """Settings that name a database with this version's tables, for tests that leave nothing in it."""
    name = f"stockgate_{secrets.token_hex(6)}"
    settings = settings_for(servers, name)

    async def make() -> None:
        await servers.mariadb.execute(f"CREATE DATABASE {name}")
        await migrate(settings)

    asyncio.run(make())
    yield settings
    asyncio.run(servers.mariadb.execute(f"DROP DATABASE {name}"))
