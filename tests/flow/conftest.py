"""One running system for many tests of a module, replaced after a test that failed in it."""

import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from stockgate.processes import log_tail
from stockgate.servers import Servers
from tests.flow.world import World

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remember on the test that one of its phases failed, for the fixture that is torn down after it."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


class Worlds:
    """The world that a module's tests share. Each test uses names of its own."""

    def __init__(self, servers: Servers, directory: Path) -> None:
        self._servers = servers
        self._directory = directory
        self._world: World | None = None
        self._made = 0

    async def current(self) -> World:
        """The world that runs; starts one if there is none."""
        if self._world is None:
            self._made += 1
            self._world = await World(self._servers, self._directory / str(self._made)).__aenter__()
        return self._world

    async def discard(self) -> None:
        """End the world; servers that a test left dead or standing live again afterwards."""
        for server in self._servers:
            await server.kill(signal.SIGCONT)
            if not server.alive():
                await server.start()
        if self._world is None:
            return
        world, self._world = self._world, None
        asked = [role for role in world.roles if role.child.alive()]
        await world.__aexit__()
        hung = [role for role in asked if role.child.exit_code == -signal.SIGKILL]
        logs = "\n".join(f"  {role.name}:\n{log_tail(role.child.log_path, 40)}" for role in hung)
        assert not hung, f"asked to end, these had to be killed:\n{logs}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worlds(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Worlds]:
    shared = Worlds(servers, tmp_path_factory.mktemp("flow"))
    yield shared
    await shared.discard()


@pytest_asyncio.fixture(loop_scope="module")
async def world(worlds: Worlds, request: pytest.FixtureRequest) -> AsyncGenerator[World]:
    """A running system with two gateways; shared, unless the test before failed."""
    yield await worlds.current()
    if request.node.stash.get(_FAILED, False):
        await worlds.discard()
