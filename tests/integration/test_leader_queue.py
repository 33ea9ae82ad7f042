"""The queue loses messages, is purged, deleted, or its broker dies: the log in Redis fills it again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from inventory.moves import Move
from stockgate.servers import Servers
from tests.integration.leader_world import LeaderWorld, settle


@asynccontextmanager
async def led_without_worker(servers: Servers, directory: Path) -> AsyncGenerator[tuple[LeaderWorld, AsyncExitStack]]:
    """A shard whose leader leads and whose worker has gone; it comes back on the stack."""
    async with LeaderWorld.open(servers, directory, worker=False) as world, AsyncExitStack() as stack:
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(world.worker())
            await stack.enter_async_context(world.leader())
            await world.decides()
            await world.buy_some(3)
            await world.quiet()
        yield world, stack


async def test_a_hole_in_the_queue_is_filled_when_the_worker_asks(servers: Servers, tmp_path: Path) -> None:
    async with led_without_worker(servers, tmp_path) as (world, stack):
        await world.buy_some(30)
        assert await world.purge_queue() == 30
        await world.buy_some(5)
        await stack.enter_async_context(world.worker())
        await world.quiet()
        await world.check()
        assert (await world.row())["term"] == 1
        assert len(world.acked) == 38


async def test_an_idle_worker_over_an_empty_queue_is_sent_everything_again(servers: Servers, tmp_path: Path) -> None:
    async with led_without_worker(servers, tmp_path) as (world, stack):
        await world.buy_some(30)
        assert await world.purge_queue() == 30
        await stack.enter_async_context(world.worker())
        await world.quiet(limit_s=10)
        await world.check()
        assert (await world.row())["term"] == 1


async def test_a_new_leader_fills_a_purged_queue(servers: Servers, tmp_path: Path) -> None:
    async with led_without_worker(servers, tmp_path) as (world, stack):
        await world.buy_some(30)
        await world.purge_queue()
        async with world.leader():
            await stack.aclose()
            await stack.enter_async_context(world.worker())
            await world.decides(beyond_term=1)
            await world.buy_some(3)
            await world.check()


@pytest.mark.parametrize("purged", ["TERM", "CLOSE"])
async def test_a_purged_term_or_close_is_sent_again(servers: Servers, tmp_path: Path, purged: str) -> None:
    async with led_without_worker(servers, tmp_path) as (world, stack):
        if purged == "TERM":
            async with world.leader():
                await stack.aclose()

                async def drawn() -> bool:
                    return (await world.row())["term"] == 2 and await world.purge_queue() == 1

                await world.until(drawn, "TERM is in the queue and gone")
                await stack.enter_async_context(world.worker())
                await world.decides(beyond_term=1)
                await world.buy_some(3)
                await world.check()
        else:
            await world.sql("UPDATE shard SET rebuild_wanted = 1")

            async def closing() -> bool:
                return (await world.head())["fence"] == "1" and await world.purge_queue() == 1

            await world.until(closing, "CLOSE is in the queue and gone")
            await stack.enter_async_context(world.worker())
            await world.decides(beyond_epoch=1)
            await world.buy_some(3)
            await world.check()


async def test_a_deleted_queue_is_made_and_filled_again(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        async with world.buyers():
            await world.more_answers(30)
            await world.delete_queue()
            await world.more_answers(30, limit_s=10)
        await world.check()


async def test_a_broker_that_was_killed_is_found_again(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        async with world.buyers():
            await world.more_answers(30)
            # Killed within 5 s of its declaration, a quorum queue of this broker has lost the name of its only member for ever.
            await asyncio.sleep(6)
            await servers.rabbitmq.kill()
            await asyncio.sleep(1)
            await servers.rabbitmq.start()
            await world.more_answers(30, limit_s=20)
        await world.check()
        assert (await world.row())["epoch"] == 1


async def test_relaying_and_naming_go_on_while_mysql_is_away(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        await world.buy_some(6)
        known = list(world.acked)
        await world.quiet()
        await servers.mariadb.kill()
        for order_id in known:
            answer = await world.ask(settle(Move.CONFIRM, order_id))
            assert answer is not None, order_id
        await servers.mariadb.start()
        await world.buy_some(3)
        await world.quiet()
        assert (await world.row())["term"] == 1
