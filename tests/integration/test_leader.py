"""Leaders come and go: one lock, one term, one log; nothing acknowledged is lost and nothing is there twice."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from inventory.leader import Leader
from kernel.amqp_door import Publisher
from kernel.metrics import Metrics
from kernel.settings import Settings
from stockgate.servers import Servers
from tests.integration.leader_world import SHARD, LeaderWorld, metric


async def test_the_first_start_ever_opens_epoch_one(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader() as leader:
        row = await world.decides()
        assert (row["mode"], row["epoch"], row["term"], row["applied_term"]) == ("hot", 1, 1, 1)
        await world.buy_some(20)
        await world.check()
        assert len(world.acked) == 20
        assert leader.status == (True, 1, 1)
        assert [metric(world.metrics, name) for name in ("leader", "epoch", "epochs_opened_total")] == [1, 1, 1]


async def test_of_two_candidates_one_leads_and_the_other_takes_over(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader() as second:
        async with world.leader() as first:
            await world.decides()
            await world.buy_some(5)
            assert first.status.leading != second.status.leading
            was_first = first.status.leading
        if was_first:
            await world.decides(beyond_term=1)
        await world.buy_some(5)
        assert second.status.leading
        row = await world.row()
        assert row["epoch"] == 1
        assert row["term"] == (2 if was_first else 1)
        await world.check()


async def test_a_resigned_leader_leaves_nothing_unnamed(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
            async with world.buyers():
                await world.more_answers(50)
        head = await world.head()
        assert head["m"] == head["confirmed_m"]


async def test_a_killed_leader_is_followed_under_load(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        process = world.process()
        await world.decides()
        async with world.buyers():
            await world.more_answers(50)
            async with world.leader():
                await process.child.kill()
                row = await world.decides(beyond_term=1)
                assert (row["term"], row["epoch"]) == (2, 1)
                await world.more_answers(50, limit_s=10)
            process = world.process()
            await world.decides(beyond_term=2)
            await world.more_answers(50, limit_s=10)
        await world.check()


@pytest.mark.timeout(90)
async def test_a_paused_leader_has_no_effect_when_it_goes_on(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path, amqp_heartbeat_s="1") as world:
        paused = world.process("leader.before_naming=stop@60")
        await world.decides()
        async with world.buyers(), world.leader():
            await paused.stopped()
            row = await world.decides(beyond_term=1, limit_s=15)
            assert row["epoch"] == 1
            await world.more_answers(50)
            await paused.child.kill(signal.SIGCONT)
            await world.more_answers(50)
            await asyncio.sleep(1)
            assert (await world.row())["term"] == row["term"]
        assert paused.child.alive()
        await world.check()


@pytest.mark.parametrize("turns", range(5))
async def test_a_leader_that_is_to_end_ends_though_its_connection_breaks_at_that_moment(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """A group of tasks raises what failed in it in place of the cancellation that came with it."""
    publishers: list[Publisher] = []
    connect = Publisher.connect

    async def noted(settings: Settings, *, name: str, **more: Any) -> Publisher:
        publisher = await connect(settings, name=name, **more)
        if name == f"leader.{SHARD}":
            publishers.append(publisher)
        return publisher

    monkeypatch.setattr(Publisher, "connect", noted)
    async with LeaderWorld.open(servers, tmp_path) as world:
        leader = Leader(world.settings, SHARD, database=world.database, metrics=Metrics())
        leading = asyncio.create_task(leader.run(asyncio.Event()))
        await world.decides()
        publishers[-1].abandon()
        for _ in range(turns):
            await asyncio.sleep(0)
        leading.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(leading, return_exceptions=True)
        assert leading.done()
        assert len(publishers) == 1, "it has not begun anew"
        assert not leader.status.leading
