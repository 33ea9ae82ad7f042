"""Deciding by Redis with MySQL behind it, on real servers; the test plays the leader and the persist worker."""

import asyncio
import signal
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from inventory.hot_path import Failure, HotPath, Need
from inventory.loading import Loader
from inventory.moves import LineState, Move
from inventory.operations import Operation, Result
from inventory.outcomes import CallStatus
from inventory.shard_state import ShardWatch
from kernel import limits
from kernel.redis_keys import EpochKeys
from stockgate.servers import Servers
from tests.integration.hot_world import (
    Pause,
    World,
    adjust,
    confirm,
    outcomes,
    read,
    release,
    reserve,
    settle,
)


@pytest.fixture
async def world(servers: Servers) -> AsyncGenerator[World]:
    async with World.open(servers) as world:
        yield world


async def decide(gateway: Any, *ops: Operation) -> list[str]:
    """Decide each operation as a request of its own."""
    for group, op in enumerate(ops):
        op.group = group
    return outcomes((await gateway.path.decide(ops)).decisions)


def detail(result: Result | Failure) -> Any:
    assert isinstance(result, Result)
    return result.detail


# --- ids ----------------------------------------------------------------------------------------------------------------


async def test_a_repeat_is_a_replay_and_another_content_a_conflict(world: World) -> None:
    await world.stock("k1", "k2")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a", ("k1", 2), ("k2", 1)), adjust("r1", "k1", 5)) == ["DONE", "DONE"]
        assert await decide(
            gateway,
            reserve("a", ("k2", 1), ("k1", 2)),
            reserve("a", ("k1", 3)),
            reserve("a", ("k1", 2), ("k2", 1), tenant="other"),
            adjust("r1", "k1", 5),
            adjust("r1", "k1", 6),
        ) == ["REPLAY", "ORDER_CONFLICT", "DONE", "REPLAY", "REQUEST_CONFLICT"]
        assert await decide(gateway, confirm("a"), confirm("a"), release("a"), reserve("a", ("k1", 2), ("k2", 1))) == [
            "DONE",
            "REPLAY",
            "ILLEGAL_TRANSITION",
            "ORDER_CLOSED",
        ]
        assert (
            await decide(gateway, confirm("nobody"), read("nobody"), settle(Move.EXPIRE, "nobody"))
            == ["UNKNOWN_ORDER"] * 3
        )
    assert (await world.balance("k1"))["available"] == 100 - 2 - 2 + 5


async def test_unknown_and_held_keys_are_named(world: World) -> None:
    await world.stock("k1", "k2")
    await world.sql("UPDATE inventory_balance SET held = 1 WHERE inventory_key = 'k2'")
    async with world.gateway() as gateway:
        # One request: what is refused by the loader does not keep the operations behind it from being decided.
        decided = await gateway.path.decide(
            [
                reserve("a", ("k1", 1), ("u1", 1), ("u2", 1)),
                reserve("b", ("k1", 1), ("k2", 1)),
                reserve("c", ("k1", 1)),
            ]
        )
        assert outcomes(decided.decisions) == ["UNKNOWN_INVENTORY_KEY", "KEY_FROZEN", "DONE"]
        assert detail(decided.decisions[0]) == ["u1", "u2"]
        assert detail(decided.decisions[1]) == ["k2"]
        await world.stock("u1", "u2")
        assert await decide(gateway, reserve("a", ("k1", 1), ("u1", 1), ("u2", 1))) == ["DONE"]
    assert await world.redis.command("EXISTS", world.names.balance("k2")) == 0


async def test_what_left_redis_is_found_again_in_mysql(world: World) -> None:
    await world.stock("k1")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a"), adjust("r1", "k1", 5)) == ["DONE", "DONE"]
        before = await gateway.path.decide([adjust("r1", "k1", 5)])
        assert await decide(gateway, confirm("a"), settle(Move.CONSUME, "a")) == ["DONE", "DONE"]
        await world.name()
        await world.apply()
        assert await world.evict() == 2
        assert await decide(gateway, reserve("a")) == ["ORDER_CLOSED"]
        again = await gateway.path.decide([adjust("r1", "k1", 5)])
        assert outcomes(again.decisions) == ["REPLAY"]
        assert detail(again.decisions[0]) == detail(before.decisions[0])
        assert await decide(gateway, settle(Move.CONSUME, "a"), settle(Move.RETURN, "a")) == [
            "REPLAY",
            "ILLEGAL_TRANSITION",
        ]
    assert len(await world.changes()) == 4


async def test_a_proof_older_than_what_left_redis_is_looked_up_again(world: World) -> None:
    await world.stock("k1")
    async with world.gateway() as slow, world.gateway() as quick:
        pause = Pause(slow.path, "call")
        deciding = asyncio.create_task(slow.path.decide([reserve("a")]))
        await pause.reached.wait()
        assert await decide(quick, reserve("a"), release("a")) == ["DONE", "DONE"]
        await world.apply()
        assert await world.evict() == 1
        pause.go_on.set()
        assert outcomes((await deciding).decisions) == ["ORDER_CLOSED"]
    assert [change.kind for change in await world.changes()] == [Move.RESERVE, Move.RELEASE]


async def test_proofs_that_are_never_new_enough_end_in_a_503(world: World) -> None:
    await world.stock("k1")
    async with world.gateway() as gateway:
        await world.redis.command("HSET", world.names.head, "evicted_m", "1000")
        assert await decide(gateway, reserve("a"), confirm("b")) == ["UNAVAILABLE not_executed"] * 2
        await world.redis.command("HSET", world.names.head, "evicted_m", "0")
        assert await decide(gateway, reserve("a"), confirm("b")) == ["DONE", "UNKNOWN_ORDER"]


async def test_a_record_that_was_loaded_and_left_before_the_call_is_not_taken_for_new(world: World) -> None:
    await world.stock("k1")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a"), release("a")) == ["DONE", "DONE"]
        await world.apply()
        await world.open_epoch()
        await gateway.watch.refresh()
        op = reserve("a")
        prepared = await gateway.path.prepare([Need(op)])
        assert op.proof == -1, "proofs are of absence"
        # Loaded ones bear no entry of this epoch: nothing that leaves with them raises what a proof must reach.
        assert await world.evict() == 1
        assert outcomes((await gateway.path.call([op], proven_in=prepared.epoch)).decisions) == ["NEED_LOOKUP"]
        assert await decide(gateway, reserve("a")) == ["ORDER_CLOSED"]
    assert await world.changes() == []


async def test_an_order_of_an_earlier_epoch_is_loaded_whole_and_settled(world: World) -> None:
    await world.stock("k1", "k2")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a", ("k1", 2), ("k2", 3)), reserve("b", ("k1", 1))) == ["DONE", "DONE"]
        await world.apply()
        await world.open_epoch()
        # This gateway learns of the new epoch by the answer of the old one's head.
        await world.redis.command("DEL", f"{{sg:0}}:{world.epoch - 1}:head")
        assert await decide(gateway, confirm("a"), release("b")) == ["DONE", "DONE"]
        decided = await gateway.path.decide([read("a")])
        view = detail(decided.decisions[0])
        assert [(line[0], line[1], line[2], line[4]) for line in view[2]] == [
            ("k1", 2, LineState.CONFIRMED, world.epoch),
            ("k2", 3, LineState.CONFIRMED, world.epoch),
        ]
    assert await world.balance("k1") == {
        "available": 98,
        "reserved": 0,
        "sold": 2,
        "consumed": 0,
        "locked": 0,
        "seq": 4,
        "version": 0,
    }
    assert {event.seq for change in await world.changes() for event in change.events} == {3, 2, 4}


async def test_an_order_in_part_is_no_order(world: World) -> None:
    await world.stock("k1", "k2")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a", ("k1", 2), ("k2", 3))) == ["DONE"]
        await world.apply()
        await world.sql("DELETE FROM inventory_reservation WHERE position = 2")
        await world.open_epoch()
        await gateway.watch.refresh()
        assert await decide(gateway, confirm("a"), reserve("b"), reserve("a", ("k1", 1))) == [
            "UNAVAILABLE not_executed",
            "DONE",
            "UNAVAILABLE not_executed",
        ]


PARK = (
    "INSERT INTO inventory_parked_event (inventory_key, epoch, m, change_no, shard_no, seq, tenant, ref, payload, reason,"
    " parked_ms) VALUES ('k9', 1, 1, 0, 0, 1, 'shop', %s, '', 'a test', 0)"
)


async def test_an_order_with_parked_changes_is_neither_new_nor_settled(world: World) -> None:
    await world.stock("k1")
    await world.sql(PARK, ("a",))
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a"), confirm("a"), reserve("b"), adjust("a", "k1", 1)) == [
            "KEY_FROZEN",
            "KEY_FROZEN",
            "DONE",
            "KEY_FROZEN",
        ]


async def test_a_parked_order_replayed_during_the_look_up_is_not_missed(world: World) -> None:
    await world.stock("k1")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a")) == ["DONE"]
        await world.apply()
        columns = (
            "tenant, order_id, shard_no, fingerprint, buyer_id, line_count, open_lines, due_ms, epoch, m, created_ms"
        )
        await world.sql("CREATE TABLE IF NOT EXISTS set_aside AS SELECT * FROM inventory_order")
        await world.sql("DELETE FROM inventory_order")
        await world.sql(PARK, ("a",))
        await world.open_epoch()
        await gateway.watch.refresh()

        async def replay() -> None:
            await world.sql("DELETE FROM inventory_parked_event")
            await world.sql(
                f"INSERT INTO inventory_order ({columns}, updated_ms) SELECT {columns}, updated_ms FROM set_aside"
            )
            await world.sql("DROP TABLE set_aside")

        database = gateway.loader._database
        fetch_all = database.fetch_all
        statements: list[str] = []

        async def replayed_after_the_first(statement: Any, params: Any = ()) -> Any:
            rows = await fetch_all(statement, params)
            statements.append(statement)
            if len(statements) == 1:
                await replay()
            return rows

        database.fetch_all = replayed_after_the_first
        found = await gateway.loader.look_up([("shop", "a")])
        assert found.orders == {("shop", "a")}
        assert await decide(gateway, reserve("a")) == ["REPLAY"]


# --- epochs -------------------------------------------------------------------------------------------------------------


async def test_a_fence_closes_and_a_newer_epoch_is_taken_up_at_once(world: World) -> None:
    await world.stock("k1")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a")) == ["DONE"]
        await world.fence()
        assert await decide(gateway, reserve("b"), confirm("a")) == ["SHARD_CLOSED not_executed"] * 2
        await world.apply()
        await world.open_epoch()
        decided = await gateway.path.decide([reserve("b"), reserve("a")])
        assert outcomes(decided.decisions) == ["DONE", "REPLAY"]
        assert decided.epoch == world.epoch == 2


async def test_a_proof_of_an_earlier_epoch_proves_nothing(world: World) -> None:
    await world.stock("k1")
    async with world.gateway() as slow, world.gateway() as quick:
        for number in range(5):
            assert await decide(quick, reserve(f"n{number}")) == ["DONE"]
        await world.apply()
        pause = Pause(slow.path, "call")
        deciding = asyncio.create_task(slow.path.decide([reserve("a")]))
        await pause.reached.wait()
        assert await decide(quick, reserve("a"), release("a")) == ["DONE", "DONE"]
        await world.apply()
        await world.fence()
        await world.open_epoch()
        pause.go_on.set()
        assert outcomes((await deciding).decisions) == ["ORDER_CLOSED"]
    assert await world.changes() == []


async def test_no_row_says_hot_then_nobody_decides(world: World) -> None:
    await world.stock("k1")
    await world.sql("UPDATE shard SET mode = 'opening'")
    async with world.gateway() as gateway:
        decided = await gateway.path.decide([reserve("a"), confirm("b")])
        assert outcomes(decided.decisions) == ["SHARD_CLOSED not_executed"] * 2
        assert decided.status == CallStatus.NO_HEAD
        await world.sql("UPDATE shard SET mode = 'hot'")
        assert await decide(gateway, reserve("a")) == ["DONE"]


async def test_a_leader_of_an_older_term_decides_nothing(world: World) -> None:
    await world.stock("k1")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a", ttl_ms=1)) == ["DONE"]
        await asyncio.sleep(0.01)
        stale = await gateway.path.decide([settle(Move.EXPIRE, "a")], term=6)
        assert (stale.status, outcomes(stale.decisions)) == (CallStatus.STALE_TERM, ["SHARD_CLOSED not_executed"])
        assert len(await world.changes()) == 1
        swept = await gateway.path.decide([settle(Move.EXPIRE, "a")], term=7)
        assert (swept.status, outcomes(swept.decisions), swept.m) == (CallStatus.DECIDED, ["DONE"], 2)


async def test_a_redis_without_what_was_promised_last_decides_nothing(world: World) -> None:
    """It came back with older data, and its leader has not noticed: what it knows of an order is not what was answered."""
    await world.stock("k1")
    oldest = await world.image()
    async with world.gateway() as promised, world.gateway(listening=False) as by_the_row:
        async with world.naming():
            assert outcomes((await promised.batcher.submit([reserve("a")])).results) == ["DONE"]
            await world.apply()
            older = await world.image()
            answer = await promised.batcher.submit([confirm("a"), reserve("b")])
            assert outcomes(answer.results) == ["DONE", "DONE"]
        assert promised.confirmations.known(world.epoch).m == 2
        await world.go_back_to(older)
        asked = [confirm("b"), release("a"), read("b"), reserve("c")]
        assert await decide(promised, *asked) == ["SHARD_CLOSED not_executed"] * 4
        # Nothing of it depends on which process was told: what MySQL has was promised to somebody.
        assert await decide(by_the_row, read("a")) == ["DONE"]
        await world.go_back_to(oldest)
        await by_the_row.watch.refresh()
        assert await decide(by_the_row, read("a")) == ["SHARD_CLOSED not_executed"]
        await world.go_back_to(older)
        # As many entries again, and others than before.
        for number in range(3):
            assert await decide(by_the_row, reserve(f"d{number}")) == ["DONE"]
        assert await decide(promised, *asked) == ["SHARD_CLOSED not_executed"] * 4
        assert (await promised.path.read_balances(["k1"]))["k1"].source == "mysql"
        assert (await by_the_row.path.read_balances(["k1"]))["k1"].source == "redis"
        # And the next epoch begins with nothing that anybody could lack.
        await world.fence()
        await world.open_epoch()
        assert await decide(promised, read("a"), reserve("c")) == ["DONE", "DONE"]


async def test_a_record_that_only_mysql_has_is_not_mixed_with_an_older_redis(world: World) -> None:
    """A gateway that has heard nothing: what it finds when it looks an order up tells it what Redis has lost."""
    await world.stock("k1")
    unaware = ShardWatch(world.database, world.shard)
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a")) == ["DONE"]
        await world.apply()
        await unaware.refresh()
        older = await world.image()
        assert await decide(gateway, reserve("b")) == ["DONE"]
        await world.apply()
        await world.go_back_to(older)
        path = HotPath(world.settings, world.redis, Loader(world.database, world.redis, world.shard), unaware)
        assert outcomes((await path.decide([read("a")])).decisions) == ["DONE"]
        # The units of a would do for b.
        assert outcomes((await path.decide([confirm("b")])).decisions) == ["SHARD_CLOSED not_executed"]
    assert len(await world.changes()) == 1


async def test_an_epoch_is_over_once_an_entry_of_a_newer_one_was_named(world: World) -> None:
    """Redis comes back from before the epoch was opened, and its names look as if it were hot."""
    await world.stock("k1")
    unaware = ShardWatch(world.database, world.shard)
    async with world.gateway() as gateway, world.naming():
        assert outcomes((await gateway.batcher.submit([reserve("a")])).results) == ["DONE"]
        await world.apply()
        await unaware.refresh()
        older = await world.image()
        first = world.epoch
        await world.fence()
        await world.open_epoch()
    async with world.gateway() as gateway, world.naming():
        assert outcomes((await gateway.batcher.submit([confirm("a")])).results) == ["DONE"]
        assert gateway.confirmations.epoch == world.epoch > first
        await world.go_back_to(older)
        path = HotPath(world.settings, world.redis, gateway.loader, unaware, gateway.confirmations)
        assert unaware.hot_epoch == first
        assert outcomes((await path.decide([confirm("a")])).decisions) == ["SHARD_CLOSED not_executed"]
        assert int(await world.redis.command("HGET", EpochKeys(world.shard, first).head, "m")) == 1


# --- stores in trouble --------------------------------------------------------------------------------------------------


async def test_without_mysql_known_orders_go_on_and_new_ones_do_not(world: World) -> None:
    await world.stock("k1", "k2")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a"), reserve("b")) == ["DONE", "DONE"]
        await world.servers.mariadb.kill(signal.SIGKILL)
        assert await decide(
            gateway, confirm("a"), reserve("b"), reserve("c"), confirm("d"), reserve("b", ("k1", 9)), read("a")
        ) == [
            "DONE",
            "REPLAY",
            "UNAVAILABLE not_executed",
            "UNAVAILABLE not_executed",
            "ORDER_CONFLICT",
            "DONE",
        ]
        await world.servers.mariadb.start()
        assert await decide(gateway, reserve("c"), confirm("d"), reserve("e", ("k2", 1))) == [
            "DONE",
            "UNKNOWN_ORDER",
            "DONE",
        ]


async def test_without_redis_nothing_is_executed_and_a_lost_reply_is_unknown(world: World) -> None:
    await world.stock("k1")
    quick = world.settings.model_copy(update={"redis_timeout_ms": 300})
    async with world.gateway(settings=quick) as gateway:
        assert await decide(gateway, reserve("a")) == ["DONE"]
        await world.servers.redis.kill(signal.SIGSTOP)
        assert await decide(gateway, reserve("b"), confirm("a")) == ["UNAVAILABLE unknown"] * 2
        await world.servers.redis.kill(signal.SIGCONT)
        assert await decide(gateway, reserve("b"), confirm("a")) in (["REPLAY", "REPLAY"], ["DONE", "DONE"])
        assert len(await world.changes()) == 3
        # Otherwise a kill can take the last moment with it: while a slow disk is busy, Redis writes nothing to its file.
        await world.written()
        await world.servers.redis.kill(signal.SIGKILL)
        assert await decide(gateway, reserve("c"), confirm("b")) in (
            ["UNAVAILABLE not_executed"] * 2,
            ["UNAVAILABLE unknown"] * 2,
        )
        assert await decide(gateway, reserve("c"), confirm("b")) == ["UNAVAILABLE not_executed"] * 2
        await world.servers.redis.start()
        assert await decide(gateway, reserve("c"), confirm("b")) == ["DONE", "DONE"]


async def test_a_full_redis_refuses_orders_and_lets_settle(world: World) -> None:
    await world.stock("k1", "k2")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a"), reserve("b"), reserve("c", ("k2", 1))) == ["DONE"] * 3
        await world.redis.command("CONFIG", "SET", "maxmemory", "1")
        try:
            assert await decide(
                gateway, confirm("a"), reserve("d"), release("b"), adjust("r", "k1", 1), read("c"), reserve("c")
            ) == [
                "DONE",
                "UNAVAILABLE not_executed",
                "DONE",
                "UNAVAILABLE not_executed",
                "DONE",
                "UNAVAILABLE not_executed",
            ]
        finally:
            await world.redis.command("CONFIG", "SET", "maxmemory", "0")
        assert await decide(gateway, reserve("d"), adjust("r", "k1", 1)) == ["DONE", "DONE"]
    assert (await world.balance("k1"))["reserved"] == 1


async def test_forgotten_scripts_are_no_trouble(world: World) -> None:
    await world.stock("k1", "k2")
    async with world.gateway() as gateway:
        for number in range(5):
            await world.redis.command("SCRIPT", "FLUSH")
            assert await decide(gateway, reserve(f"a{number}"), reserve(f"b{number}", ("k2", 1))) == ["DONE", "DONE"]


async def test_a_key_that_redis_lost_is_not_sold(world: World) -> None:
    await world.stock("k1", "k2")
    async with world.gateway() as gateway:
        assert await decide(gateway, reserve("a", ("k1", 1)), reserve("b", ("k2", 1))) == ["DONE", "DONE"]
        await world.redis.command("DEL", world.names.balance("k1"))
        assert await decide(gateway, reserve("c"), confirm("a"), confirm("b")) == ["LOST", "LOST", "DONE"]


# --- bounds -------------------------------------------------------------------------------------------------------------


async def test_more_lines_than_one_call_walks_are_decided_by_several(world: World) -> None:
    keys = [f"k{number}" for number in range(limits.LINES_PER_ORDER_MAX)]
    await world.stock(*keys)
    orders = [f"o{number}" for number in range(6)]
    async with world.gateway() as gateway:
        for order in orders:
            assert await decide(gateway, reserve(order, *((key, 1) for key in keys))) == ["DONE"]
        await world.apply()
        await world.open_epoch()
        await gateway.watch.refresh()
        assert await decide(gateway, *(confirm(order) for order in orders)) == ["DONE"] * len(orders)
    assert (await world.balance("k999"))["sold"] == 6


async def test_a_batch_cancelled_anywhere_is_decided_once_or_not_at_all(world: World) -> None:
    """Cancelled at every step of the loop: afterwards the same gateway works, and a repeat finds one effect."""
    async with world.gateway() as gateway:
        steps = finished = 0
        while finished < 3 and steps < 400:
            order, line = f"o{steps}", (f"k{steps}", 1)
            await world.stock(line[0])
            task = asyncio.create_task(gateway.path.decide([reserve(order, line), confirm(order)]))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
                finished += 1
            except asyncio.CancelledError:
                finished = 0
            assert (await decide(gateway, reserve(order, line)))[0] in {"DONE", "REPLAY", "ORDER_CLOSED"}
            assert (await decide(gateway, confirm(order)))[0] in {"DONE", "REPLAY"}
            changes = [change.kind for change in await world.changes() if change.ref == order]
            assert changes == [Move.RESERVE, Move.CONFIRM], f"cancelled after {steps} steps"
            steps += 1
        assert steps > 10
