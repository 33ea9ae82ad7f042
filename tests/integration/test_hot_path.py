from collections.abc import AsyncIterator

import pytest

from stockgate.servers import Servers
from tests.integration.hot_world import World, outcomes, reserve


@pytest.fixture
async def world(servers: Servers) -> AsyncIterator[World]:
    async with World.open(servers) as world:
        yield world


async def test_replays_and_conflicts(world: World) -> None:
    await world.stock("k1", "k2")
    async with world.gateway() as gateway:
        decided = await gateway.path.decide([reserve("a", ("k1", 2), ("k2", 1))])
        assert outcomes(decided.decisions) == ["DONE"]
