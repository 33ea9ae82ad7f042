"""What every test folder shares: one set of real servers for the whole run."""

import asyncio
from collections.abc import Iterator

import pytest

from stockgate.servers import Servers
from tests.declared import watched_answers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Private Redis, MariaDB and RabbitMQ, started when the first test asks for them.

    They are not bound to an event loop. A test that kills one starts it again; a test that needs them empty makes a
    database of its own (`stockgate_…` belongs to the application's account) or its own server.
    """
    servers = Servers(tmp_path_factory.mktemp("servers"))
    asyncio.run(servers.start())
    yield servers
    asyncio.run(servers.stop())


@pytest.fixture(scope="session", autouse=True)
def answers_against_the_contract() -> Iterator[list[str]]:
    """Every gateway within this process is watched: no handler may answer what its call does not declare."""
    with watched_answers() as found:
        yield found


@pytest.fixture(autouse=True)
def _only_declared_answers(answers_against_the_contract: list[str]) -> Iterator[None]:
    answers_against_the_contract.clear()
    yield
    assert not answers_against_the_contract, answers_against_the_contract
