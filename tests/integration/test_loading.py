"""Bringing keys and records from MySQL into Redis, by several loaders at once."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from inventory.shard_state import NoSuchShard, ShardWatch, read_shard
from kernel import limits
from kernel.errors import StoreUnavailable
from stockgate.servers import Servers
from tests.integration.hot_world import Pause, World, confirm, outcomes, release, reserve, running


@pytest.fixture
async def world(servers: Servers) -> AsyncGenerator[World]:
    async with World.open(servers) as world:
        yield world


async def test_two_gateways_meet_an_unloaded_key_at_the_same_moment(world: World) -> None:
    await world.stock("k1", available=5)
    async with world.gateway() as one, world.gateway() as other:
        first, second = (Pause(gateway.loader, "load_keys", after=True) for gateway in (one, other))
        deciding = [
            asyncio.create_task(gateway.path.decide([reserve(f"{name}{number}", ("k1", 1))]))
            for name, gateway in (("a", one), ("b", other))
            for number in range(5)
        ]
        # Both have seen NOT_LOADED; both write before either decides.
        await asyncio.gather(first.reached.wait(), second.reached.wait())
        first.go_on.set()
        second.go_on.set()
        results = [outcomes(decided.decisions)[0] for decided in await asyncio.gather(*deciding)]
    assert sorted(results) == ["DONE"] * 5 + ["INSUFFICIENT_STOCK"] * 5
    assert await world.balance("k1") == {
        "available": 0,
        "reserved": 5,
        "sold": 0,
        "consumed": 0,
        "locked": 0,
        "seq": 5,
        "version": 0,
    }


async def test_a_loader_that_slept_between_reading_and_writing_changes_nothing(world: World) -> None:
    await world.stock("k1", available=3)
    async with world.gateway() as sleeper, world.gateway() as other:
        pause = Pause(sleeper.loader, "_balances", after=True)
        late = asyncio.create_task(sleeper.path.decide([reserve("late", ("k1", 3))]))
        await pause.reached.wait()
        assert outcomes((await other.path.decide([reserve("a", ("k1", 2))])).decisions) == ["DONE"]
        await world.apply()
        pause.go_on.set()
        assert outcomes((await late).decisions) == ["INSUFFICIENT_STOCK"]
    assert (await world.balance("k1"))["available"] == 1


async def test_a_loader_of_an_earlier_epoch_finds_no_head_or_a_fence(world: World) -> None:
    await world.stock("k1", "k2", available=3)
    async with world.gateway() as sleeper, world.gateway() as other:
        pause = Pause(sleeper.loader, "_balances", after=True)
        late = asyncio.create_task(sleeper.path.decide([reserve("late", ("k1", 3))]))
        await pause.reached.wait()
        old = world.names
        await world.fence()
        await world.open_epoch()
        await other.watch.refresh()
        assert outcomes((await other.path.decide([reserve("a", ("k1", 2))])).decisions) == ["DONE"]
        pause.go_on.set()
        assert outcomes((await late).decisions) == ["INSUFFICIENT_STOCK"]
        assert await world.redis.command("EXISTS", old.balance("k1")) == 0


async def test_an_order_loaded_late_does_not_undo_what_happened_since(world: World) -> None:
    await world.stock("k1")
    async with world.gateway() as sleeper, world.gateway() as other:
        assert outcomes((await other.path.decide([reserve("a")])).decisions) == ["DONE"]
        await world.apply()
        await world.open_epoch()
        await sleeper.watch.refresh()
        await other.watch.refresh()
        pause = Pause(sleeper.loader, "_offer")
        late = asyncio.create_task(sleeper.path.decide([release("a")]))
        await pause.reached.wait()
        assert outcomes((await other.path.decide([confirm("a")])).decisions) == ["DONE"]
        # Even when it has left again meanwhile, with a newer entry than the sleeper's reading proves.
        await world.redis.command("ZADD", world.names.settled, 0, "o:shop/a")
        await world.apply()
        assert await world.evict() == 1
        pause.go_on.set()
        assert outcomes((await late).decisions) == ["ILLEGAL_TRANSITION"]


async def test_many_keys_and_large_orders_are_loaded_in_bounded_pieces(world: World) -> None:
    keys = [f"k{number}" for number in range(limits.LOAD_KEYS_MAX + 500)]
    await world.stock(*keys)
    async with world.gateway() as gateway:
        loaded = await gateway.loader.load_keys([*keys, "unknown"])
        assert (loaded.unknown, loaded.held) == (frozenset({"unknown"}), frozenset())
        assert await world.redis.command("SCARD", world.names.opened) == len(keys)
        refs = [("shop", f"o{number}") for number in range(12)]
        for _, order in refs:
            decided = await gateway.path.decide([reserve(order, *((key, 1) for key in keys[:900]))])
            assert outcomes(decided.decisions) == ["DONE"]
        await world.apply()
        await world.open_epoch()
        found = await gateway.loader.look_up([*refs, ("shop", "unknown")])
        assert found.orders == frozenset(refs)
        assert await world.redis.command("ZCARD", world.names.due) == len(refs)
        assert await world.redis.command("HLEN", world.names.order("shop", "o11")) == 901


async def test_a_balance_is_read_where_it_is_known_best(world: World) -> None:
    await world.stock("warm", "cold", "held")
    await world.sql("UPDATE inventory_balance SET held = 1 WHERE inventory_key = 'held'")
    async with world.gateway() as gateway:
        await gateway.path.decide([reserve("a", ("warm", 7))])
        read = await gateway.path.read_balances(["warm", "cold", "held", "unknown"])
        assert set(read) == {"warm", "cold", "held"}
        assert (read["warm"].source, read["warm"].balance.available, read["warm"].balance.reserved) == ("redis", 93, 7)
        assert (read["cold"].source, read["cold"].balance.available, read["cold"].frozen) == ("mysql", 100, False)
        assert (read["held"].source, read["held"].frozen) == ("mysql", True)
        assert read["warm"].epoch == world.epoch
        await world.servers.redis.kill()
        read = await gateway.path.read_balances(["warm"])
        assert (read["warm"].source, read["warm"].balance.available) == ("mysql", 100)
        await world.servers.redis.start()


async def test_reading_balances_says_that_mysql_is_away(world: World) -> None:
    await world.stock("warm", "cold")
    async with world.gateway() as gateway:
        await gateway.path.decide([reserve("a", ("warm", 7))])
        await world.servers.mariadb.kill()
        assert set(await gateway.path.read_balances(["warm"])) == {"warm"}
        with pytest.raises(StoreUnavailable) as refused:
            await gateway.path.read_balances(["warm", "cold"])
        assert refused.value.store == "mysql"
        await world.servers.mariadb.start()


# --- the shard's row ----------------------------------------------------------------------------------------------------


async def test_the_row_is_followed_and_kept_while_mysql_is_away(world: World) -> None:
    watch = ShardWatch(world.database, world.shard)
    assert watch.hot_epoch == 0
    async with running(watch.run()):
        row = await watch.wait_change()
        assert row
        assert (row.mode, row.epoch, watch.hot_epoch) == ("hot", 1, 1)
        async with asyncio.timeout(2):
            changed = asyncio.create_task(watch.wait_change())
            await asyncio.sleep(0)
            await world.sql("UPDATE shard SET mode = 'opening'")
            row = await changed
        assert row
        assert (row.mode, watch.hot_epoch) == ("opening", 0)
        await world.servers.mariadb.kill()
        async with asyncio.timeout(5):
            while watch.failure is None:
                await asyncio.sleep(0.05)
        assert watch.row == row
        await world.servers.mariadb.start()
        async with asyncio.timeout(5):
            while watch.failure:
                await asyncio.sleep(0.05)


async def test_a_row_read_earlier_never_replaces_a_later_one(world: World) -> None:
    watch = ShardWatch(world.database, world.shard)
    pause = Pause(world.database, "fetch_all", after=True)
    early = asyncio.create_task(watch.refresh())
    await pause.reached.wait()
    del world.database.fetch_all
    await world.sql("UPDATE shard SET epoch = 9")
    assert (await watch.refresh()).epoch == 9
    pause.go_on.set()
    assert (await early).epoch == 9
    assert watch.hot_epoch == 9


async def test_a_shard_without_a_row_is_said_so(world: World) -> None:
    with pytest.raises(NoSuchShard):
        await read_shard(world.database, 5)
