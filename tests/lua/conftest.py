"""A Redis of their own for the tests of the scripts; each test takes a shard number that nobody else uses."""

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest
import redis

from stockgate.servers import RedisServer
from tests.lua.shard import Shard

_numbers = itertools.count()


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    server = RedisServer(tmp_path_factory.mktemp("lua"))
    asyncio.run(server.start())
    connection = redis.Redis.from_url(server.url)
    yield connection
    connection.close()
    asyncio.run(server.stop())


@pytest.fixture
def new_shard(client: redis.Redis) -> Callable[[], Shard]:
    """Makes shards with an open epoch and nothing loaded."""

    def make() -> Shard:
        shard = Shard(client, next(_numbers))
        shard.open()
        return shard

    return make


@pytest.fixture
def shard(new_shard: Callable[[], Shard]) -> Shard:
    return new_shard()
