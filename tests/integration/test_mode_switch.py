"""Switches of the mode as rows: who may begin, abort, move on and end one, and what excludes what. No leader runs here."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from inventory import mode_switch
from inventory.events import genesis
from inventory.mode_switch import AlreadyThere, NoSwitch, SwitchRunning, TooLate, abort_switch, request_switch
from inventory.operator_actions import Action, BadReason, read_page
from inventory.shard_row import enter_db, leave_db, read_row, set_hot
from kernel.mysql_door import Statement
from stockgate.servers import Servers
from tests.integration.leader_world import SHARD, LeaderWorld

TERM = 7


@pytest.fixture
async def world(servers: Servers, tmp_path: Path) -> AsyncGenerator[LeaderWorld]:
    """A shard that is hot in epoch 1 and term 7, and nobody who does anything."""
    async with LeaderWorld.open(servers, tmp_path, worker=False) as world:
        await world.sql("UPDATE shard SET mode = 'hot', epoch = 1, term = %s, applied_term = %s", TERM, TERM)
        yield world


async def claim(world: LeaderWorld, switch_id: int, term: int = TERM) -> bool:
    return await mode_switch.claim_close(world.database, SHARD, switch_id, term)


async def step(world: LeaderWorld, switch_id: int, name: mode_switch.Step, term: int = TERM) -> bool:
    return await mode_switch.append_step(world.database, SHARD, switch_id, term, name)


async def steps(world: LeaderWorld, switch_id: int | None = None) -> list[str]:
    return [step.step for step in (await world.switch(switch_id)).steps]


async def outcomes(world: LeaderWorld) -> list[tuple[str, str, str]]:
    """What the operators' audit table says, the newest first."""
    page = await read_page(world.database, 10)
    return [(action.action, action.outcome, action.detail) for action in page.actions]


async def test_a_switch_is_begun_with_its_audit_row(world: LeaderWorld) -> None:
    switch_id = await world.request("db", "Redis is to be moved")
    row = await world.row()
    assert (row["switch_id"], row["switch_to"], row["mode"]) == (switch_id, "db", "hot")
    view = await world.switch()
    assert (view.id, view.to_mode, view.status, view.finished_at, view.steps) == (switch_id, "db", "RUNNING", None, [])
    assert (view.reason, view.requested_by) == ("Redis is to be moved", "cli:test")
    assert await outcomes(world) == [("switch_mode", "PENDING", "")]


async def test_of_two_requests_at_once_one_is_refused(world: LeaderWorld) -> None:
    results = await asyncio.gather(*(world.request("db") for _ in range(4)), return_exceptions=True)
    begun = [result for result in results if isinstance(result, int)]
    refused = [result for result in results if isinstance(result, SwitchRunning)]
    assert (len(begun), len(refused)) == (1, 3)
    assert {refusal.switch_id for refusal in refused} == {*begun}
    assert len(await world.query("SELECT 1 FROM mode_switch")) == 1
    assert len(await world.query("SELECT 1 FROM operator_action")) == 1


@pytest.mark.parametrize(("mode", "to_mode"), [("hot", "hot"), ("db", "db"), ("opening", "hot")])
async def test_a_shard_that_is_there_already_needs_no_switch(
    world: LeaderWorld, mode: str, to_mode: mode_switch.ToMode
) -> None:
    await world.sql("UPDATE shard SET mode = %s", mode)
    with pytest.raises(AlreadyThere) as refusal:
        await world.request(to_mode)
    assert refusal.value.mode == mode
    assert await world.query("SELECT 1 FROM operator_action") == []


async def test_a_running_switch_is_named_even_where_the_mode_is_reached(world: LeaderWorld) -> None:
    switch_id = await world.request("db")
    await world.sql("UPDATE shard SET mode = 'db'")
    with pytest.raises(SwitchRunning) as refusal:
        await world.request("db")
    assert (refusal.value.switch_id, refusal.value.to_mode) == (switch_id, "db")


async def test_no_switch_without_a_reason(world: LeaderWorld) -> None:
    with pytest.raises(BadReason):
        await world.request("db", "  ")
    assert (await world.row())["switch_id"] == 0


async def test_a_dry_run_begins_and_aborts_nothing(world: LeaderWorld) -> None:
    dry = Action("cli:test", "switch_mode", "shard 0", "", dry_run=True)
    assert await request_switch(world.database, SHARD, "db", dry) == 0
    assert (await world.row())["switch_id"] == 0
    switch_id = await world.request("db")
    assert await abort_switch(world.database, SHARD, dry) == switch_id
    assert (await world.row())["switch_id"] == switch_id


async def test_an_aborted_switch_leaves_its_trace(world: LeaderWorld) -> None:
    switch_id = await world.request("db")
    assert await step(world, switch_id, "fence")
    assert await world.abort() == switch_id
    row = await world.row()
    assert (row["switch_id"], row["switch_to"], row["mode"]) == (0, "", "hot")
    view = await world.switch(switch_id)
    assert (view.status, view.detail) == ("ABORTED", "aborted by cli:test")
    assert view.finished_at is not None
    assert await outcomes(world) == [
        ("abort_switch", "DONE", f"switch {switch_id} to db"),
        ("switch_mode", "STOPPED", "aborted by cli:test"),
    ]
    with pytest.raises(NoSwitch):
        await world.abort()
    assert not await claim(world, switch_id)
    assert not await step(world, switch_id, "drain")
    assert not await mode_switch.finish(world.database, SHARD, switch_id, TERM)
    # Another one is another one.
    second = await world.request("db")
    assert second > switch_id
    assert not await claim(world, switch_id)
    assert await claim(world, second)


async def test_abort_and_close_exclude_each_other(world: LeaderWorld) -> None:
    for _ in range(20):
        switch_id = await world.request("db")
        aborted, claimed = await asyncio.gather(world.abort(), claim(world, switch_id), return_exceptions=True)
        if claimed is True:
            assert isinstance(aborted, TooLate)
            assert await steps(world, switch_id) == ["close"]
            await mode_switch.finish(world.database, SHARD, switch_id, TERM)
        else:
            assert claimed is False
            assert aborted == switch_id
            assert await steps(world, switch_id) == []


async def test_only_the_leader_of_the_term_moves_a_switch(world: LeaderWorld) -> None:
    switch_id = await world.request("db")
    assert not await step(world, switch_id, "fence", term=TERM - 1)
    assert not await claim(world, switch_id, term=TERM - 1)
    assert not await mode_switch.finish(world.database, SHARD, switch_id, TERM - 1)
    assert await steps(world) == []


async def test_each_step_is_noted_once(world: LeaderWorld) -> None:
    switch_id = await world.request("db")
    for name in ("fence", "fence", "drain", "fence"):
        assert await step(world, switch_id, name)
    assert await claim(world, switch_id)
    assert await claim(world, switch_id)
    assert await mode_switch.finish(world.database, SHARD, switch_id, TERM, steps=("closed",))
    assert await steps(world) == ["fence", "drain", "close", "closed"]
    times = [step.at for step in (await world.switch()).steps]
    assert times == sorted(times)
    assert await outcomes(world) == [("switch_mode", "DONE", "")]


async def test_what_was_noted_stays_unless_the_end_says_something(world: LeaderWorld) -> None:
    switch_id = await world.request("db")
    await mode_switch.note(world.database, switch_id, "Redis is away")
    assert (await world.switch()).detail == "Redis is away"
    await mode_switch.finish(world.database, SHARD, switch_id, TERM)
    assert (await world.switch()).detail == "Redis is away"
    await mode_switch.note(world.database, switch_id, "too late")
    assert (await world.switch()).detail == "Redis is away"


async def test_a_switch_to_hot_can_be_aborted_while_mysql_decides(world: LeaderWorld) -> None:
    await world.sql("UPDATE shard SET mode = 'db', epoch = 2")
    first = await world.request("hot")
    assert await world.abort() == first
    second = await world.request("hot")
    assert not await claim(world, second)
    assert await leave_db(world.database, SHARD, await read_row(world.database, SHARD))
    with pytest.raises(TooLate):
        await world.abort()
    assert await set_hot(world.database, SHARD, await read_row(world.database, SHARD), 3, 2)
    with pytest.raises(TooLate):
        await world.abort()
    assert await steps(world, second) == ["lock", "open"]


async def test_leaving_db_waits_for_all_that_mysql_is_deciding(world: LeaderWorld) -> None:
    await world.sql("UPDATE shard SET mode = 'db', epoch = 2")
    await world.request("hot")
    row = await read_row(world.database, SHARD)
    shared = Statement("SELECT mode FROM shard WHERE shard_no = 0 LOCK IN SHARE MODE")
    async with world.database.transaction() as deciding:
        assert await deciding.fetch_one(shared) == ("db",)
        leaving = asyncio.create_task(leave_db(world.database, SHARD, row))
        done, _ = await asyncio.wait((leaving,), timeout=0.5)
        assert not done
        assert (await world.row())["mode"] == "db"
    assert await leaving
    assert (await world.row())["mode"] == "opening"


async def test_modes_move_only_from_what_was_read(world: LeaderWorld) -> None:
    await world.sql("UPDATE shard SET mode = 'db', epoch = 2")
    no_switch = await read_row(world.database, SHARD)
    await world.request("hot")
    assert not await leave_db(world.database, SHARD, no_switch)
    row = await read_row(world.database, SHARD)
    assert not await leave_db(world.database, SHARD, row._replace(term=TERM - 1))
    assert not await leave_db(world.database, SHARD, row._replace(epoch=1))
    assert not await enter_db(world.database, SHARD, row)
    assert await leave_db(world.database, SHARD, row)
    assert not await leave_db(world.database, SHARD, row)


async def test_what_could_not_be_opened_goes_back_into_an_epoch_of_its_own(world: LeaderWorld) -> None:
    await world.sql("UPDATE shard SET mode = 'db', epoch = 2")
    switch_id = await world.request("hot")
    assert await leave_db(world.database, SHARD, await read_row(world.database, SHARD))
    opening = await read_row(world.database, SHARD)
    assert await enter_db(world.database, SHARD, opening)
    row = await read_row(world.database, SHARD)
    assert (row.mode, row.epoch, row.applied_m, row.applied_digest) == ("db", 3, 0, genesis(SHARD, 3))
    # Whoever was about to open an epoch has lost it.
    assert not await set_hot(world.database, SHARD, opening, 3, 3)
    assert await steps(world) == ["lock", "back"]
    assert await world.abort() == switch_id
