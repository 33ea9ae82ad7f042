"""Redis comes back without what its leader did last: a fence, an unfencing, the confirmed mark."""

import asyncio
from pathlib import Path

from inventory.moves import LineState, Move
from kernel.amqp_door import Publisher
from kernel.amqp_topology import log_queue
from kernel.redis_keys import EpochKeys
from stockgate.servers import Servers
from tests.integration.leader_world import KEYS, SHARD, LeaderWorld, read, reserve, settle, states
from tests.integration.test_leader_epochs import copy_redis, replace_redis
from tests.integration.test_leader_queue import led_without_worker


async def queue_depth(world: LeaderWorld) -> int:
    publisher = await Publisher.connect(world.settings, name="test")
    try:
        return (await publisher.queue_depth(log_queue(SHARD)))[0]
    finally:
        await publisher.close()


async def test_nothing_is_answered_behind_a_close_whose_fence_redis_forgot(servers: Servers, tmp_path: Path) -> None:
    async with led_without_worker(servers, tmp_path) as (world, stack):
        before = await copy_redis(world)
        await world.sql("UPDATE shard SET rebuild_wanted = 1 WHERE shard_no = 0")

        async def closing() -> bool:
            return (await world.head())["fence"] == "1" and await queue_depth(world) > 0

        await world.until(closing, "CLOSE is in the queue")
        await replace_redis(world, before)
        await world.buy(limit_s=3)
        await stack.enter_async_context(world.worker())
        await world.decides(beyond_epoch=1)
        # Its outcome is unknown, and may be anything but a loss after a yes.
        world.unanswered.clear()
        await world.check()


async def test_a_fence_that_comes_back_with_older_data_is_taken_away(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        # The last thing it was told: an appendfsync of `everysec` loses it with the machine.
        await world.redis.command("HSET", EpochKeys(SHARD, 1).head, "fence", "1")
        await world.buy(limit_s=8)
        assert not world.unanswered


async def test_a_confirmed_mark_that_comes_back_older_is_moved_again(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        await world.buy_some(3)
        await world.quiet()
        await world.redis.command("HSET", EpochKeys(SHARD, 1).head, "confirmed_m", "1", "confirmed_bytes", "1")
        await world.quiet(limit_s=10)


async def test_a_broken_log_is_fenced_before_the_next_term_begins(servers: Servers, tmp_path: Path) -> None:
    async with led_without_worker(servers, tmp_path) as (world, stack):
        order_id = await world.buy()
        old = await copy_redis(world)
        await world.ask(settle(Move.RELEASE, order_id))
        await replace_redis(world, old)

        async def told_nothing() -> bool:
            return await world.ask(read(order_id)) is None

        # No worker, so no term begins, and the old leader is gone.
        await world.until(told_nothing, "nobody is told what is no longer so", limit_s=5)
        await asyncio.sleep(1)
        assert await told_nothing()
        await stack.enter_async_context(world.worker())
        await world.decides(beyond_epoch=1)
        assert states(await world.ask(read(order_id))) == [LineState.RELEASED]


async def test_a_log_with_a_hole_is_closed(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
            await world.buy_some(3)
            await world.quiet()
        for number in range(3):
            await world.path.decide([reserve(f"unled-{number}", KEYS[0])])
        await world.redis.command("XDEL", EpochKeys(SHARD, 1).log, "5-0")
        async with world.leader():
            await world.decides(beyond_epoch=1)
            await world.buy_some(3)
            await world.check()


async def test_what_cannot_be_read_of_an_old_epoch_is_listed_and_deleted(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
            await world.buy_some(1)
            await world.quiet()
        await world.redis.command("XADD", EpochKeys(SHARD, 0).log, "7-0", "d", "x" * 40, "e", b"\xc1", "b", "1")
        async with world.leader():
            row = await world.decides(beyond_term=1)

            async def listed() -> bool:
                return bool(await world.query("SELECT 1 FROM stale_event WHERE epoch = 0 AND m = 7"))

            await world.until(listed, "the entry is listed")
            await asyncio.sleep(1)
            assert (await world.row())["term"] == row["term"]
