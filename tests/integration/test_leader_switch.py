"""The leader carries switches of the mode out: under load, killed in every step, aborted, and with Redis away."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from inventory.db_expiry import DbSweeper
from inventory.hot_path import HotPath
from inventory.mode_switch import NoSwitch, SwitchView, TooLate
from inventory.moves import Move
from inventory.operations import Result
from inventory.shard_state import ShardWatch
from kernel.errors import StoreUnavailable
from kernel.redis_keys import EpochKeys
from stockgate.servers import Servers
from tests.integration.leader_world import KEYS, SHARD, LeaderWorld, metric, read, reserve, settle


def names(view: SwitchView) -> list[str]:
    return [step.step for step in view.steps]


async def refuses(world: LeaderWorld) -> None:
    """Redis decides nothing for a gateway that knows the row."""
    await world.watch.refresh()
    assert await world.ask(reserve("not now", KEYS[0])) is None


@asynccontextmanager
async def in_db(servers: Servers, directory: Path) -> AsyncGenerator[LeaderWorld]:
    """A shard with ten orders in which MySQL decides, and nobody leads."""
    async with LeaderWorld.open(servers, directory) as world:
        async with world.leader():
            await world.decides()
            await world.buy_some(10)
            await world.switch_over("db")
        yield world


async def test_the_mode_is_switched_there_and_back_under_load(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader() as leader:
        await world.decides()
        async with world.buyers():
            await world.more_answers(50)
            view = await world.switched(await world.request("db"))
            assert names(view) == ["fence", "drain", "close", "closed"]
            row = await world.row()
            assert (row["mode"], row["epoch"], row["applied_m"], row["switch_id"]) == ("db", 2, 0, 0)
            await world.acked_is_applied()
            head = await world.head(1)
            assert (head["fence"], head["m"]) == ("1", head["confirmed_m"])
            assert await world.query("SELECT MAX(m) FROM inventory_ledger WHERE epoch = 1") == [(int(head["m"]),)]
            await refuses(world)
            assert metric(world.metrics, "shard_hot") == 0
            assert leader.status == (True, 1, 2)
            answers = len(world.acked)
            await asyncio.sleep(0.5)
            assert len(world.acked) == answers
            assert (await world.head(1))["m"] == head["m"]
            view = await world.switched(await world.request("hot"))
            assert names(view) == ["lock", "open", "unfence"]
            await world.more_answers(50)
        row = await world.row()
        assert (row["mode"], row["epoch"], row["term"]) == ("hot", 3, 1)
        await world.check()
        assert await world.query("SELECT COUNT(*) FROM stale_event") == [(0,)]


TO_DB = (
    ("leader.after_lock", []),
    ("leader.after_fence", []),
    ("leader.after_drain", ["fence", "drain"]),
    ("leader.after_claim_close", ["fence", "drain", "close"]),
    ("leader.before_close", ["fence", "drain", "close"]),
    ("leader.after_close_sent", ["fence", "drain", "close"]),
    ("leader.before_switch_done", ["fence", "drain", "close"]),
)


async def test_a_switch_to_db_that_died_in_any_step_is_completed_by_the_next_leader(
    servers: Servers, tmp_path: Path
) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
        for failpoint, reached in TO_DB:
            epoch = (await world.row())["epoch"]
            async with world.leader():
                await world.decides(beyond_term=(await world.row())["term"])
                await world.buy_some(3)
            switch_id = await world.request("db")
            await world.process(f"{failpoint}=kill").died()
            assert names(await world.switch(switch_id)) == reached, failpoint
            async with world.leader():
                view = await world.switched(switch_id)
                assert names(view) == ["fence", "drain", "close", "closed"], failpoint
                assert (await world.row())["epoch"] == epoch + 1
                await world.acked_is_applied()
                await world.switch_over("hot")
                await world.buy_some(3)
                await world.check()
        assert len(world.acked) == 6 * len(TO_DB)


TO_HOT = (
    ("leader.after_leave_db", ["lock"]),
    ("leader.after_draw", ["lock"]),
    ("leader.after_row_hot", ["lock", "open"]),
    ("leader.after_take_over", ["lock", "open"]),
    ("leader.after_unfence", ["lock", "open"]),
    ("leader.before_switch_done", ["lock", "open"]),
)


async def test_a_switch_to_hot_that_died_in_any_step_is_completed_by_the_next_leader(
    servers: Servers, tmp_path: Path
) -> None:
    async with in_db(servers, tmp_path) as world:
        for failpoint, reached in TO_HOT:
            epoch = (await world.row())["epoch"]
            switch_id = await world.request("hot")
            await world.process(f"{failpoint}=kill").died()
            assert names(await world.switch(switch_id)) == reached, failpoint
            async with world.leader():
                view = await world.switched(switch_id)
                assert names(view) == ["lock", "open", "unfence"], failpoint
                assert (await world.row())["epoch"] > epoch
                await world.buy_some(3)
                await world.check()
                await world.switch_over("db")


@pytest.mark.parametrize("failpoint", ["leader.after_fence", "leader.after_drain"])
async def test_an_aborted_switch_leaves_redis_deciding(servers: Servers, tmp_path: Path, failpoint: str) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        process = world.process(f"{failpoint}=stop")
        row = await world.decides()
        async with world.buyers():
            await world.more_answers(20)
            switch_id = await world.request("db")
            await process.stopped()
            assert await world.abort() == switch_id
            await process.child.kill(signal.SIGCONT)
            await world.decides()
            await world.more_answers(20)
        now = await world.row()
        assert (now["mode"], now["epoch"], now["term"]) == ("hot", row["epoch"], row["term"])
        assert (await world.switch(switch_id)).status == "ABORTED"
        await world.check()
        # And it can be switched all the same.
        await world.switch_over("db")


async def test_an_abort_behind_the_claim_is_too_late(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        process = world.process("leader.after_claim_close=stop")
        await world.decides()
        switch_id = await world.request("db")
        await process.stopped()
        with pytest.raises(TooLate):
            await world.abort()
        await process.child.kill(signal.SIGCONT)
        await world.switched(switch_id)
        assert (await world.row())["mode"] == "db"
        with pytest.raises(NoSwitch):
            await world.abort()


async def test_a_rebuild_that_is_wanted_during_a_switch_is_contained_in_it(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        process = world.process("leader.after_fence=stop")
        await world.decides()
        await world.buy_some(3)
        switch_id = await world.request("db")
        await process.stopped()
        await world.sql("UPDATE shard SET rebuild_wanted = 1, rebuild_reason = 'k-1 is lost'")
        await process.child.kill(signal.SIGCONT)
        await world.switched(switch_id)
        row = await world.row()
        assert (row["mode"], row["epoch"], row["rebuild_wanted"]) == ("db", 2, 0)
        await world.acked_is_applied()
        await world.switch_over("hot")
        await world.check()


async def test_a_rebuild_that_is_wanted_during_an_aborted_switch_follows(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        process = world.process("leader.after_fence=stop")
        await world.decides()
        await world.buy_some(3)
        await world.request("db")
        await process.stopped()
        await world.sql("UPDATE shard SET rebuild_wanted = 1, rebuild_reason = 'k-1 is lost'")
        await world.abort()
        await process.child.kill(signal.SIGCONT)
        row = await world.decides(beyond_epoch=1)
        assert row["rebuild_wanted"] == 0
        await world.check()


async def test_a_switch_waits_for_the_rebuild_that_is_under_way(servers: Servers, tmp_path: Path) -> None:
    """It is closed for the rebuild, and as MySQL has everything then, no epoch is opened in between."""
    async with LeaderWorld.open(servers, tmp_path) as world:
        process = world.process("leader.after_fence=stop")
        await world.decides()
        await world.buy_some(3)
        await world.sql("UPDATE shard SET rebuild_wanted = 1, rebuild_reason = 'k-1 is lost'")
        await process.stopped()
        switch_id = await world.request("db")
        await process.child.kill(signal.SIGCONT)
        view = await world.switched(switch_id)
        assert names(view) == ["closed"]
        row = await world.row()
        assert (row["mode"], row["epoch"], row["rebuild_wanted"]) == ("db", 2, 0)
        await world.acked_is_applied()
        await world.switch_over("hot")
        await world.check()


async def test_what_is_due_is_swept_while_mysql_decides(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = 0

    async def sweep(_sweeper: DbSweeper, *, term: int = 0) -> int:
        nonlocal sweeps
        assert term
        sweeps += 1
        raise StoreUnavailable("mysql", "not_executed", "one of many")

    monkeypatch.setattr(DbSweeper, "sweep", sweep)
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        row = await world.decides()
        assert sweeps == 0
        await world.switch_over("db")

        async def swept() -> bool:
            return sweeps >= 3

        await world.until(swept, "swept again and again")
        assert (await world.row())["term"] == row["term"]
        await world.switch_over("hot")
        before = sweeps
        await asyncio.sleep(1.2)
        assert sweeps == before


# --- Redis away -------------------------------------------------------------------------------------------------------


async def test_mysql_takes_over_from_a_dead_redis_and_gives_back_to_the_living(
    servers: Servers, tmp_path: Path
) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        async with world.buyers():
            await world.more_answers(100)
            await servers.redis.kill()
            view = await world.switched(await world.request("db"), limit_s=15)
            assert names(view) == ["close", "closed"]
            assert "Redis is out of reach" in view.detail
            assert (await world.row())["epoch"] == 2
            await world.acked_is_applied()

            waiting = await world.request("hot")

            async def says_why() -> bool:
                return "Redis is out of reach" in (await world.switch(waiting)).detail

            await world.until(says_why, "the switch says why it waits")
            assert (await world.row())["mode"] == "db"
            await world.abort()
            waiting = await world.request("hot")
            await world.until(says_why, "the switch says why it waits")
            await servers.redis.start()
            view = await world.switched(waiting)
            assert (names(view), view.detail) == (["lock", "open", "unfence"], "")
            await world.more_answers(50)
        row = await world.row()
        assert (row["mode"], row["epoch"]) == ("hot", 3)
        await world.check()


async def test_mysql_takes_over_from_a_redis_that_takes_no_writes(servers: Servers, tmp_path: Path) -> None:
    """It answers, so nobody calls it dead: a replica, or one whose disk is full."""
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        async with world.buyers():
            await world.more_answers(50)
            await world.redis.command("REPLICAOF", "127.0.0.1", "1")
            try:
                view = await world.switched(await world.request("db"))
                assert names(view) == ["close", "closed"]
                assert "READONLY" in view.detail
                await world.acked_is_applied()
            finally:
                await world.redis.command("REPLICAOF", "NO", "ONE")
            await world.switch_over("hot")
            await world.more_answers(20)
        await world.check()


async def test_mysql_takes_over_from_a_redis_that_says_nothing(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        async with world.buyers():
            await world.more_answers(50)
            assert servers.redis.pid is not None
            os.kill(servers.redis.pid, signal.SIGSTOP)
            try:
                view = await world.switched(await world.request("db"))
                assert names(view) == ["close", "closed"]
                await world.acked_is_applied()
            finally:
                os.kill(servers.redis.pid, signal.SIGCONT)
            await world.switch_over("hot")
            await world.more_answers(20)
        await world.check()


async def test_two_candidates_without_redis_bring_the_switch_to_its_end(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader(), world.leader():
        await world.decides()
        async with world.buyers():
            await world.more_answers(50)
            await world.redis.command("REPLICAOF", "127.0.0.1", "1")
            try:
                await world.switched(await world.request("db"))
            finally:
                await world.redis.command("REPLICAOF", "NO", "ONE")
            await world.acked_is_applied()
            await world.switch_over("hot")
            await world.more_answers(20)
        await world.check()


async def test_a_leader_stands_in_mode_db_though_redis_is_dead(servers: Servers, tmp_path: Path) -> None:
    async with in_db(servers, tmp_path) as world:
        await servers.redis.kill()
        term = (await world.row())["term"]
        async with world.leader() as leader:

            async def leads() -> bool:
                return leader.status.leading and (await world.row())["applied_term"] > term

            await world.until(leads, "it leads")
            await asyncio.sleep(1)
            assert leader.status == (True, term + 1, 2)


async def test_a_candidate_without_redis_leads_no_shard_that_is_hot(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
        await servers.redis.kill()
        async with world.leader() as leader:
            await asyncio.sleep(4)
            assert not leader.status.leading
            row = await world.row()
            assert (row["mode"], row["term"], row["switch_id"]) == ("hot", 1, 0)


async def test_a_shard_that_was_never_opened_can_begin_in_mode_db(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        await servers.redis.kill()
        switch_id = await world.request("db")
        async with world.leader():
            view = await world.switched(switch_id)
            assert names(view) == ["closed"]
            assert (await world.row())["epoch"] == 1


async def test_redis_that_died_during_an_opening_leaves_mysql_deciding(servers: Servers, tmp_path: Path) -> None:
    async with in_db(servers, tmp_path) as world:
        process = world.process("leader.after_leave_db=stop")
        switch_id = await world.request("hot")
        await process.stopped()
        await servers.redis.kill()
        await process.child.kill(signal.SIGCONT)

        async def back() -> bool:
            return (await world.row())["mode"] == "db"

        await world.until(back, "MySQL decides again")
        assert (await world.row())["epoch"] == 3
        view = await world.switch(switch_id)
        assert (names(view), view.status) == (["lock", "back"], "RUNNING")
        assert "Redis is out of reach" in view.detail
        await world.abort()
        await servers.redis.start()
        await process.child.kill()
        async with world.leader():
            await world.switch_over("hot")
            assert (await world.row())["epoch"] > 3
            await world.check()


async def test_a_switch_that_redis_left_before_its_end_fails_and_frees_the_way(
    servers: Servers, tmp_path: Path
) -> None:
    async with in_db(servers, tmp_path) as world:
        process = world.process("leader.after_row_hot=stop")
        switch_id = await world.request("hot")
        await process.stopped()
        await servers.redis.kill()
        await process.child.kill(signal.SIGCONT)
        view = await world.switched(switch_id, "FAILED")
        assert "Redis went away" in view.detail
        view = await world.switched(await world.request("db"))
        assert names(view) == ["close", "closed"]
        await servers.redis.start()
        await world.switch_over("hot")
        await world.check()


async def test_an_abort_lets_a_shard_wait_for_its_redis(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
            await world.buy_some(5)
        await servers.redis.kill()
        switch_id = await world.request("db")
        process = world.process("leader.after_fence=stop")
        await process.stopped()
        await world.abort()
        await servers.redis.start()
        await process.child.kill(signal.SIGCONT)
        row = await world.decides()
        assert row["epoch"] == 1
        assert names(await world.switch(switch_id)) == []
        await world.check()


async def test_what_a_returning_redis_decides_in_its_old_epoch_never_counts(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        unaware = ShardWatch(world.database, SHARD)
        async with world.leader():
            await world.decides()
            await world.buy_some(6)
            await unaware.refresh()
            await servers.redis.kill()
            await world.switched(await world.request("db"))
        await servers.redis.start()
        # Its head was never fenced: Redis was away. A gateway that has heard nothing since goes on with it.
        gateway = HotPath(world.settings, world.redis, world.loader, unaware)

        async def decides() -> bool:
            decided = await gateway.decide([settle(Move.RELEASE, "order-1")])
            return (decided.epoch, decided.m) == (1, 7)

        await world.until(decides, "Redis decides")
        async with world.leader():

            async def deleted() -> bool:
                return not await world.redis.command("KEYS", EpochKeys(SHARD, 1).prefix + "*")

            await world.until(deleted, "the old names are gone")
            assert (await world.row())["mode"] == "db"
            assert await world.query("SELECT epoch, m FROM stale_event") == [(1, 7)]

            async def counted() -> bool:
                return metric(world.metrics, "stale_entries_total") == 1

            await world.until(counted, "it is counted")
            assert not isinstance((await gateway.decide([read("order-2")])).decisions[0], Result)
            await world.switch_over("hot")
            assert await world.query("SELECT kind FROM inventory_ledger WHERE ref = 'order-1'") == [(Move.RESERVE,)]
            await world.check()


async def test_mysql_decides_by_itself_where_the_settings_say_so(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path, auto_db_after_s="3") as world, world.leader():
        await world.decides()
        async with world.buyers():
            await world.more_answers(20)
            await servers.redis.kill()

            async def asked() -> bool:
                return (await world.row())["mode"] == "db"

            await world.until(asked, "MySQL decides", limit_s=20)
            view = await world.switch()
            assert view.requested_by == "stockgate"
            assert "Redis has been away for" in view.reason
            await world.acked_is_applied()
            await servers.redis.start()
            # Nobody switches back but an operator.
            await asyncio.sleep(2)
            assert (await world.row())["mode"] == "db"
            await world.switch_over("hot")
        await world.check()


async def test_a_moment_without_redis_is_no_reason_to_switch(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path, auto_db_after_s="60") as world, world.leader():
        await world.decides()
        async with world.buyers():
            await world.more_answers(20)
            await servers.redis.kill()
            await asyncio.sleep(5)
            await servers.redis.start()
            await world.more_answers(20)
        await world.check()
        assert await world.query("SELECT 1 FROM mode_switch") == []


# --- what configuration wants -----------------------------------------------------------------------------------------


def wish(to_mode: str, at: datetime) -> dict[str, str]:
    return {"mode_wish": to_mode, "mode_wish_at": at.isoformat(), "mode_wish_reason": "the window of Sunday night"}


async def test_configuration_switches_once_and_a_stale_one_flips_nothing(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path, worker=True, **wish("db", datetime.now(UTC))) as world:
        async with world.leader():

            async def in_db_mode() -> bool:
                return (await world.row())["mode"] == "db"

            await world.until(in_db_mode, "MySQL decides")
            view = await world.switched((await world.switch()).id)
            assert (view.requested_by, view.reason) == ("configuration", "the window of Sunday night")
            # An operator's later word counts, though this leader goes on with the same configuration.
            await world.switch_over("hot")
        before = await world.switch()
        async with world.leader():
            await world.decides()
            await world.buy_some(3)
            assert (await world.switch()).id == before.id
            assert (await world.row())["mode"] == "hot"
        await world.check()


async def test_a_wish_from_before_the_last_switch_or_from_the_future_is_not_heard(
    servers: Servers, tmp_path: Path
) -> None:
    for at in (datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1)):
        async with LeaderWorld.open(servers, tmp_path, worker=True, **wish("db", at)) as world:
            # Asked for by an operator, and given up, but later than yesterday.
            number = await world.request("db")
            assert await world.abort() == number
            async with world.leader():
                await world.decides()
                await world.buy_some(3)
                assert (await world.switch()).id == number
