"""The leader fills the filter of orders from MySQL; then a new order needs no look-up, and none is taken for new twice."""

from pathlib import Path

import pytest

from inventory.moves import Move
from inventory.operations import Result
from inventory.outcomes import Outcome
from kernel import limits
from kernel.redis_keys import EpochKeys
from stockgate.servers import Servers
from tests.filtered import until_filtered
from tests.integration.leader_world import KEYS, SHARD, LeaderWorld, reserve, settle

ORDERS = 7


async def decided_by_redis_alone(world: LeaderWorld, order_id: str) -> Outcome:
    """What the script says of a reserve without a proof."""
    epoch = (await world.row())["epoch"]
    decision = (await world.path.call([reserve(order_id, KEYS[0])], proven_in=epoch)).decisions[0]
    assert isinstance(decision, Result)
    return decision.outcome


async def loaded(world: LeaderWorld) -> None:
    """The key is in Redis, and this process has heard of the filter."""
    await world.buy()
    assert not world.path.looks_up


@pytest.mark.parametrize("page", [1, 2, 3, 500])
async def test_every_order_of_mysql_is_in_it_and_a_new_one_is_not(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(limits, "FILTER_PAGE_ORDERS", page)
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        await world.buy_some(ORDERS)
        await world.quiet()
        old = sorted(world.acked)
        await world.redis.command("FLUSHALL")
        await world.decides(beyond_epoch=1)
        await until_filtered(servers.redis.url)
        await loaded(world)
        for order_id in old:
            assert await decided_by_redis_alone(world, order_id) == Outcome.NEED_LOOKUP
        assert await decided_by_redis_alone(world, "never-seen") == Outcome.DONE
        # Looked up, they are what they were.
        for order_id in old:
            again = await world.ask(reserve(order_id, world.acked[order_id]))
            assert again is not None
            assert (again.outcome, again.replay) == (Outcome.DONE, 1)


async def test_an_evicted_order_is_looked_up_and_a_lost_filter_is_filled_anew(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path, evict_after_s="0") as world, world.leader():
        row = await world.decides()
        names = EpochKeys(SHARD, row["epoch"])
        await until_filtered(servers.redis.url)
        await loaded(world)
        order_id = await world.buy()
        answer = await world.ask(settle(Move.RELEASE, order_id))
        assert answer is not None
        assert answer.outcome == Outcome.DONE

        async def evicted() -> bool:
            return not await world.redis.command("EXISTS", names.order("shop", order_id))

        await world.until(evicted, "the ended order has left Redis")
        assert await decided_by_redis_alone(world, order_id) == Outcome.NEED_LOOKUP

        await world.redis.command("DEL", names.filter)
        assert await decided_by_redis_alone(world, order_id) == Outcome.NEED_LOOKUP
        assert world.path.looks_up

        async def whole() -> bool:
            return await world.redis.command("STRLEN", names.filter) == limits.FILTER_BYTES

        await world.until(whole, "the leader has begun it anew")
        await until_filtered(servers.redis.url)
        assert await decided_by_redis_alone(world, order_id) == Outcome.NEED_LOOKUP
        again = await world.ask(reserve(order_id, KEYS[0]))
        assert again is not None
        assert again.outcome == Outcome.ORDER_CLOSED


async def test_a_new_leader_goes_on_with_a_filter_that_is_complete(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            row = await world.decides()
            names = EpochKeys(SHARD, row["epoch"])
            await until_filtered(servers.redis.url)
            await loaded(world)
        # Nobody but a leader who fills it anew would take this away.
        await world.redis.command("SETBIT", names.filter, 5, 1)
        async with world.leader():
            await world.decides(beyond_term=row["term"])
            await world.buy_some(3)
            await world.quiet()
            assert await world.redis.command("GETBIT", names.filter, 5) == 1
            assert await decided_by_redis_alone(world, "never-seen") == Outcome.DONE
