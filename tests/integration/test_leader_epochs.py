"""Redis comes back intact, shortened, empty or older; epochs are closed and opened; every step may be a leader's last."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from inventory.hot_path import HotPath
from inventory.moves import Move
from inventory.outcomes import Outcome
from inventory.shard_state import ShardWatch
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys, register
from stockgate.servers import Servers
from tests.integration.leader_world import KEYS, SHARD, LeaderWorld, metric, reserve, settle

Copy = list[tuple[str, bytes]]


async def names_of(world: LeaderWorld, epoch: int) -> set[str]:
    return {name.decode() for name in await world.redis.command("KEYS", EpochKeys(SHARD, epoch).prefix + "*")}


async def copy_redis(world: LeaderWorld) -> Copy:
    """Everything that Redis holds, in one step."""
    names: list[bytes] = await world.redis.command("KEYS", "*")
    await world.redis.command("MULTI")
    for name in names:
        await world.redis.command("DUMP", name)
    dumps: list[bytes | None] = await world.redis.command("EXEC")
    return [(name.decode(), dump) for name, dump in zip(names, dumps, strict=True) if dump is not None]


async def replace_redis(world: LeaderWorld, copy: Copy) -> None:
    """Let Redis hold this and nothing else from one moment to the next, as a promoted replica does; nobody reconnects."""
    await world.redis.command("MULTI")
    await world.redis.command("FLUSHALL")
    for name, dump in copy:
        await world.redis.command("RESTORE", name, 0, dump)
    await world.redis.command("EXEC")


async def shorten_append_only_file(world: LeaderWorld, bytes_lost: int) -> None:
    part = world.servers.redis.append_only_files()[-1]
    with part.open("r+b") as file:
        file.truncate(max(0, part.stat().st_size - bytes_lost))


@asynccontextmanager
async def under_load(servers: Servers, directory: Path) -> AsyncGenerator[LeaderWorld]:
    """Buyers with answers behind them; the invariants are checked at the end."""
    async with LeaderWorld.open(servers, directory) as world, world.leader():
        await world.decides()
        async with world.buyers():
            await world.more_answers(50)
            yield world
            await world.more_answers(50)
        await world.check()


async def test_an_intact_redis_goes_on_in_the_same_epoch(servers: Servers, tmp_path: Path) -> None:
    async with under_load(servers, tmp_path) as world:
        await asyncio.sleep(1.2)
        await servers.redis.kill()
        await servers.redis.start()
        await world.more_answers(20, limit_s=10)
        row = await world.row()
        # Killed within a second, everysec may lose what was not fsynced to a crash of the machine, not to a kill.
        assert row["epoch"] == 1


async def test_a_redis_that_stays_away_costs_a_term_but_no_epoch(servers: Servers, tmp_path: Path) -> None:
    async with under_load(servers, tmp_path) as world:
        await servers.redis.kill()
        await asyncio.sleep(5)
        await servers.redis.start()
        await world.more_answers(20, limit_s=10)
        row = await world.row()
        assert row["epoch"] == 1
        assert row["term"] > 1


@pytest.mark.parametrize("bytes_lost", [1, 2_000, 50_000])
async def test_a_shortened_redis_is_closed_and_opened_anew(servers: Servers, tmp_path: Path, bytes_lost: int) -> None:
    async with under_load(servers, tmp_path) as world:
        await servers.redis.kill()
        await shorten_append_only_file(world, bytes_lost)
        await servers.redis.start()
        await world.more_answers(20, limit_s=10)
        if bytes_lost > 1:
            assert (await world.row())["epoch"] >= 2


async def test_an_empty_redis_is_opened_anew(servers: Servers, tmp_path: Path) -> None:
    async with under_load(servers, tmp_path) as world:
        await servers.redis.kill()
        shutil.rmtree(servers.redis.data_dir)
        await servers.redis.start()
        await world.more_answers(20, limit_s=10)
        assert (await world.row())["epoch"] >= 2


async def test_a_flushed_redis_is_opened_anew_without_any_reconnect(servers: Servers, tmp_path: Path) -> None:
    async with under_load(servers, tmp_path) as world:
        await world.redis.command("FLUSHALL")
        row = await world.decides(beyond_epoch=1, limit_s=10)
        assert row["term"] > 1
        assert metric(world.metrics, "epochs_opened_total") == 2


@pytest.mark.parametrize("name", ["head", "log"])
async def test_a_damaged_head_or_log_is_opened_anew(servers: Servers, tmp_path: Path, name: str) -> None:
    async with under_load(servers, tmp_path) as world:
        keys = EpochKeys(SHARD, 1)
        await world.redis.command("SET", {"head": keys.head, "log": keys.log}[name], "something else")
        await world.decides(beyond_epoch=1, limit_s=10)


async def test_older_data_without_any_reconnect_is_never_continued(servers: Servers, tmp_path: Path) -> None:
    async with under_load(servers, tmp_path) as world:
        old = await copy_redis(world)
        await world.more_answers(50)
        await replace_redis(world, old)
        await world.decides(beyond_epoch=1, limit_s=10)
        assert await world.redis.command("GET", register(SHARD)) == b"2"


async def test_what_a_forked_log_holds_is_listed_and_deleted(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
            await world.buy_some(10)
            assert (await world.path.decide([reserve("held", KEYS[0])])).m == 11
            await world.quiet()
            old = await copy_redis(world)
            unaware = ShardWatch(world.database, SHARD)
            await unaware.refresh()
            await world.buy_some(10)
            await world.quiet()
        # Nobody leads. Redis comes back as it was, and a gateway that has heard nothing since goes on with it.
        await replace_redis(world, old)
        gateway = HotPath(world.settings, world.redis, world.loader, unaware)
        assert (await gateway.decide([settle(Move.RELEASE, "held")])).m == 12
        async with world.leader():
            await world.decides(beyond_epoch=1)
            assert await world.query("SELECT kind FROM inventory_ledger WHERE ref = 'held'") == [(Move.RESERVE,)]

            async def listed() -> bool:
                return bool(await world.query("SELECT 1 FROM stale_event WHERE epoch = 1 AND m = 12"))

            await world.until(listed, "the forked entry is listed")

            async def deleted() -> bool:
                return not await names_of(world, 1)

            await world.until(deleted, "the old names are gone")
            assert len(await world.query("SELECT 1 FROM stale_event")) == 1
            assert metric(world.metrics, "stale_entries_total") == 1
            await world.check()


async def test_published_entries_that_were_not_named_are_no_stale_entries(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        process = world.process("leader.before_naming=kill")
        await world.decides()
        await world.path.decide([reserve("unnamed", KEYS[0])])
        await process.died()
        await world.sql("UPDATE shard SET rebuild_wanted = 1")
        async with world.leader():
            await world.decides(beyond_epoch=1)

            async def deleted() -> bool:
                return not await names_of(world, 1)

            await world.until(deleted, "the old names are gone")
            assert await world.query("SELECT 1 FROM stale_event") == []
            assert len(await world.query("SELECT 1 FROM inventory_ledger WHERE ref = 'unnamed'")) == 1


async def test_a_wanted_rebuild_closes_behind_everything_and_opens_anew(servers: Servers, tmp_path: Path) -> None:
    async with under_load(servers, tmp_path) as world:
        await world.sql("UPDATE shard SET rebuild_wanted = 1, rebuild_reason = 'k-1 is lost'")
        row = await world.decides(beyond_epoch=1)
        assert (row["epoch"], row["term"], row["rebuild_wanted"]) == (2, 1, 0)


async def test_a_wanted_rebuild_waits_for_a_leader(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
            await world.buy_some(3)
        await world.sql("UPDATE shard SET rebuild_wanted = 1")
        async with world.leader():
            await world.decides(beyond_epoch=1)
            await world.buy_some(3)
            await world.check()


OPENING = (
    "leader.after_lock",
    "leader.after_term_row",
    "leader.after_term_sent",
    "leader.after_draw",
    "leader.after_row_hot",
    "leader.after_take_over",
    "leader.after_unfence",
)


async def test_an_opening_that_died_in_any_step_is_completed_by_the_next_leader(
    servers: Servers, tmp_path: Path
) -> None:
    """Each life begins with an epoch that has to be opened: at first there is none, later Redis is empty."""
    async with LeaderWorld.open(servers, tmp_path) as world:
        for failpoint in OPENING:
            await world.redis.command("FLUSHALL")
            await world.process(f"{failpoint}=kill").died()
            async with world.leader():
                await world.decides()
                await world.buy_some(6)
                await world.check()
        assert len(world.acked) == 6 * len(OPENING)


CLOSING = (
    "leader.after_fence=kill",
    "leader.before_close=kill",
    "leader.after_close_sent=kill",
    "leader.after_draw=kill",
    "leader.after_row_hot=kill",
    "leader.after_take_over=kill@2",
    "leader.after_unfence=kill",
)


async def test_a_closing_that_died_in_any_step_is_completed_by_the_next_leader(
    servers: Servers, tmp_path: Path
) -> None:
    """Each life takes over an epoch, sells in it, and is asked to rebuild."""
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
        for failpoint in CLOSING:
            row = await world.row()
            process = world.process(failpoint)
            await world.decides(beyond_term=row["term"])
            await world.buy_some(3)
            await world.sql("UPDATE shard SET rebuild_wanted = 1")
            await process.died()
            async with world.leader():
                await world.decides(beyond_epoch=row["epoch"])
                await world.buy_some(3)
                await world.check()
        assert (await world.row())["rebuild_wanted"] == 0


RELAYING = ("leader.before_publish", "leader.after_publish", "leader.after_confirm", "leader.before_naming")


async def test_a_relay_that_died_in_any_step_is_continued(servers: Servers, tmp_path: Path) -> None:
    async with LeaderWorld.open(servers, tmp_path) as world:
        async with world.leader():
            await world.decides()
        for failpoint in RELAYING:
            term = (await world.row())["term"]
            process = world.process(f"{failpoint}=kill@20")
            await world.decides(beyond_term=term)
            async with AsyncExitStack() as stack:
                async with world.buyers():
                    await process.died()
                    await stack.enter_async_context(world.leader())
                    await world.more_answers(20)
                await world.check()
        assert (await world.row())["epoch"] == 1


async def test_an_unknown_commit_of_the_opening_does_no_harm(servers: Servers, tmp_path: Path) -> None:
    """A head that was drawn and never became hot is left behind, and its number with it."""
    async with LeaderWorld.open(servers, tmp_path) as world:
        await world.process("leader.after_draw=kill").died()
        async with world.leader():
            row = await world.decides()
            assert row["epoch"] == 2

            async def deleted() -> bool:
                return not await names_of(world, 1)

            await world.until(deleted, "the head that was never hot is gone")


class SkewedDoor(RedisDoor):
    """Redis' clock as a leader would see it on a machine whose clock is wrong."""

    skew_s = 0

    async def command(self, *args: bytes | str | int) -> Any:
        reply = await super().command(*args)
        return [int(reply[0]) + type(self).skew_s, reply[1]] if args == ("TIME",) else reply


async def test_no_head_is_opened_while_the_clocks_disagree(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inventory.leader.RedisDoor", SkewedDoor)
    monkeypatch.setattr(SkewedDoor, "skew_s", 60)
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():

        async def has_a_term() -> bool:
            return (await world.row())["applied_term"] == 1

        await world.until(has_a_term, "a leader is there")
        await asyncio.sleep(1)
        assert (await world.row())["mode"] == "opening"
        monkeypatch.setattr(SkewedDoor, "skew_s", 0)
        await world.decides()


async def test_a_shard_is_fenced_while_the_clocks_disagree(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inventory.leader.RedisDoor", SkewedDoor)
    async with LeaderWorld.open(servers, tmp_path) as world, world.leader():
        await world.decides()
        await world.buy_some(3)
        monkeypatch.setattr(SkewedDoor, "skew_s", -60)

        async def fenced() -> bool:
            return (await world.head())["fence"] == "1"

        await world.until(fenced, "the shard is fenced")
        assert await world.ask(reserve("late", KEYS[0])) is None
        monkeypatch.setattr(SkewedDoor, "skew_s", 0)
        await world.decides()
        answer = await world.ask(reserve("late", KEYS[0]))
        assert answer is not None
        assert answer.outcome == Outcome.DONE
