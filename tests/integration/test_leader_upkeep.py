"""What a leader does beside relaying: expiry, eviction, trimming, the freezing of held keys."""

import asyncio
from pathlib import Path

import pytest

from inventory.moves import LineState, Move
from inventory.outcomes import Outcome
from kernel import limits
from kernel.redis_keys import EpochKeys
from stockgate.servers import Servers
from tests.integration.leader_world import KEYS, SHARD, TENANT, LeaderWorld, read, reserve, settle, states


async def open_lines(world: LeaderWorld) -> int:
    return (await world.query("SELECT COUNT(*) FROM inventory_reservation WHERE state = 1"))[0][0]


async def released_by_expiry(world: LeaderWorld) -> int:
    rows = await world.query(
        "SELECT COUNT(*) FROM inventory_ledger WHERE kind = %s AND reason = 'expired'", int(Move.RELEASE)
    )
    return rows[0][0]


async def test_holds_that_are_due_are_released_without_being_asked_for(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        for _ in range(5):
            await world.buy(ttl_ms=500)
        kept = await world.buy()

        async def released() -> bool:
            return await released_by_expiry(world) == 5

        await world.until(released, "five holds are released", limit_s=5)
        assert states(await world.ask(read(kept))) == [LineState.RESERVED]
        await world.quiet()
        assert await open_lines(world) == 1


async def test_holds_that_only_mysql_knows_are_released_too(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        for _ in range(5):
            await world.buy(ttl_ms=2_000)
        await world.quiet()
        await world.redis.command("FLUSHALL")
        row = await world.decides(beyond_epoch=1)
        assert await world.redis.command("ZCARD", EpochKeys(SHARD, row["epoch"]).due) == 0

        async def released() -> bool:
            return await released_by_expiry(world) == 5

        await world.until(released, "five holds are released", limit_s=8)
        await world.quiet()
        balances = await world.query("SELECT available FROM inventory_balance WHERE inventory_key = %s", KEYS[0])
        assert balances == [(100_000,)]
        # Once only: the next rounds find nothing more to do.
        await asyncio.sleep(1.2)
        assert await released_by_expiry(world) == 5


async def test_no_hold_is_due_before_the_epoch_has_been_open_for_the_grace_time(
    servers: Servers, tmp_path: Path
) -> None:
    async with LeaderWorld.open(servers, tmp_path, hold_grace_ms="3000") as world, world.leader():
        await world.decides()
        await world.buy(ttl_ms=100)
        await asyncio.sleep(1.5)
        assert await released_by_expiry(world) == 0

        async def released() -> bool:
            return await released_by_expiry(world) == 1

        await world.until(released, "the hold is released", limit_s=5)


async def test_an_evicted_order_is_never_taken_for_a_new_one(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path, evict_after_s="0") as world, world.leader():
        row = await world.decides()
        names = EpochKeys(SHARD, row["epoch"])
        order_id = await world.buy()
        proof = await world.loader.look_up([(TENANT, "never-seen")])
        answer = await world.ask(settle(Move.RELEASE, order_id))
        assert answer is not None
        assert answer.outcome == Outcome.DONE

        async def evicted() -> bool:
            return not await world.redis.command("EXISTS", names.order(TENANT, order_id))

        await world.until(evicted, "the ended order has left Redis")
        assert int((await world.head())["evicted_m"]) == 2

        # A proof of absence from before cannot be used any more.
        late = reserve(order_id, KEYS[0])
        late.proof = proof.applied_m
        called = await world.path.call([late], proven_in=proof.epoch)
        assert called.decisions[0].outcome == Outcome.NEED_LOOKUP
        again = await world.ask(reserve(order_id, KEYS[0]))
        assert again is not None
        assert again.outcome == Outcome.ORDER_CLOSED


async def test_what_mysql_does_not_have_is_not_evicted(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path, worker=False, evict_after_s="0") as world, world.leader():
        async with world.worker():
            row = await world.decides()
            await world.buy()
            await world.quiet()
        names = EpochKeys(SHARD, row["epoch"])
        order_id = await world.buy()
        await world.ask(settle(Move.RELEASE, order_id))
        await asyncio.sleep(2.5)
        assert await world.redis.command("EXISTS", names.order(TENANT, order_id)) == 1
        async with world.worker():

            async def evicted() -> bool:
                return not await world.redis.command("EXISTS", names.order(TENANT, order_id))

            await world.until(evicted, "the ended order has left Redis")


async def test_the_log_is_trimmed_behind_mysql(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TRIM_ENTRIES_KEPT", 10)
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        row = await world.decides()
        await world.buy_some(60)
        await world.quiet()
        names = EpochKeys(SHARD, row["epoch"])

        async def trimmed() -> bool:
            return await world.redis.command("XLEN", names.log) <= 11

        await world.until(trimmed, "the log is short")
        await world.buy_some(5)
        await world.check()
        assert (await world.row())["term"] == 1


async def test_a_log_beyond_its_bound_lets_go_of_what_the_queue_has(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path, worker=False, log_bytes_max="2048") as world:
        async with world.worker(), world.leader():
            row = await world.decides()
            await world.buy_some(1)
            await world.quiet()
        async with world.leader():
            names = EpochKeys(SHARD, row["epoch"])
            async with world.worker():
                await world.decides(beyond_term=row["term"])
            await world.buy_some(40)

            async def trimmed() -> bool:
                return await world.redis.command("XLEN", names.log) <= 2

            await world.until(trimmed, "the log is short")
            # The next leader still takes over: whatever was confirmed is applied before its term begins.
            async with world.worker():
                await world.check()


async def test_held_keys_are_frozen_and_set_free_by_later_leaders_too(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:

        async def outcome() -> Outcome | None:
            answer = await world.ask(reserve("probe", KEYS[0]))
            return answer.outcome if answer else None

        async def hold(held: int) -> None:
            await world.sql("UPDATE inventory_balance SET held = %s WHERE inventory_key = %s", held, KEYS[0])
            await world.sql("UPDATE shard SET held_version = held_version + 1")

        async with world.leader():
            row = await world.decides()
            await world.buy(KEYS[0])
            await hold(1)
            name = EpochKeys(SHARD, row["epoch"]).balance(KEYS[0])

            async def frozen() -> bool:
                return await world.redis.command("HGET", name, "frozen") == b"1"

            await world.until(frozen, "the key is frozen")
            assert await outcome() == Outcome.KEY_FROZEN
            other = await world.ask(reserve("other", KEYS[1]))
            assert other is not None
            assert other.outcome == Outcome.DONE
        await hold(0)
        async with world.leader():

            async def free() -> bool:
                return await world.redis.command("HGET", name, "frozen") is None

            await world.until(free, "the key is free")
            assert await outcome() == Outcome.DONE
