"""Replaying and rejecting parked events on the real server."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inventory import held
from inventory.held import NotHeld, reject_held, replay_held
from inventory.moves import LineState, Move
from inventory.tables import DRIFTED, HELD
from stockgate.servers import Servers
from tests.integration.worker_world import WorkerWorld
from tests.log_builder import LogBuilder, random_log


@pytest.fixture
async def world(servers: Servers, tmp_path: Path) -> AsyncGenerator[WorkerWorld]:
    async with WorkerWorld.open(servers, tmp_path) as world:
        yield world


async def parked_count(world: WorkerWorld) -> int:
    return (await world.query("SELECT COUNT(*) FROM inventory_parked_event"))[0][0]


async def traces(world: WorkerWorld) -> list[tuple[Any, ...]]:
    return await world.query(
        "SELECT kind, inventory_key, class, status, reason, requested_by, before_image, after_image"
        " FROM inventory_repair_task ORDER BY id"
    )


async def hold_by_a_wrong_balance(world: WorkerWorld, log: LogBuilder, key: str) -> None:
    """Somebody has written one unit too much into the balance: every event of the key is parked."""
    await world.begin(log)
    await world.sql("UPDATE inventory_balance SET available = 1, total = 1 WHERE inventory_key = %s", key)
    await world.apply(*log.messages(7))
    assert (await world.balance(key))[7] == HELD


async def test_replay_after_the_cause_was_mended_leaves_no_difference(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = random_log(21, operations=400)
    key = min(log.keys)
    await hold_by_a_wrong_balance(world, log, key)
    count = log.keys[key].seq
    assert await parked_count(world) == count

    stopped = await replay_held(world.database, key, "try", "ops-1")
    assert (stopped.applied, stopped.left > 0) == (0, True)
    assert "after-image" in stopped.stopped_by
    assert await parked_count(world) == count

    await world.sql("UPDATE inventory_balance SET available = 0, total = 0 WHERE inventory_key = %s", key)
    version = (await world.row()).held_version
    dry = await replay_held(world.database, key, "mended", "ops-1", dry_run=True)
    assert (dry.applied, dry.left, dry.after[:5]) == (count, 0, log.keys[key].quantities)
    assert await parked_count(world) == count

    # In several transactions, as a long queue of parked events is.
    monkeypatch.setattr(held, "REPLAY_EVENTS_MAX", 10)
    done = await replay_held(world.database, key, "mended", "ops-1")
    assert (done.applied, done.left, done.stopped_by) == (count, 0, "")
    assert done.before[:6] == (0, 0, 0, 0, 0, 0)
    await world.check(log)
    assert await parked_count(world) == 0
    row = await world.row()
    assert (row.held_version, row.rebuild_wanted) == (version + 1, 0)
    found = await traces(world)
    assert len(found) == 1 + (count + 9) // 10
    assert found[0][:6] == ("replay_held", key, "held", "stopped", "try", "ops-1")
    assert found[-1][3] == "done"
    assert msgspec.json.decode(found[-1][7])["seq"] == count
    # The key goes on.
    log.adjust(key, 1)
    log.entry()
    await world.apply(log.message(log.head_m))
    await world.check(log)


async def poisoned(world: WorkerWorld) -> LogBuilder:
    """`a` has 10; o1's hold of 3 has a wrong after-image, o2's of 2 is good; o1 and o2 have a line of `b` too."""
    log = LogBuilder()
    log.adjust("a", 10)
    log.adjust("b", 10)
    log.entry()
    await world.begin(log)
    log.reserve("o1", {"a": 3, "b": 1})
    change = log.pending[0]
    bad = msgspec.structs.replace(change.events[0], locked=1)
    log.append_payload(msgspec.msgpack.encode([msgspec.structs.replace(change, events=[bad, change.events[1]])]))
    log.reserve("o2", {"a": 2, "b": 1})
    log.confirm("o2")
    log.entry()
    await world.apply(*log.messages())
    return log


async def test_reject_names_the_order_hurt_and_asks_for_a_rebuild(world: WorkerWorld) -> None:
    log = await poisoned(world)
    dry = await reject_held(world.database, "a", "cannot be true", "ops-1", dry_run=True)
    assert (dry.rejected, dry.applied, dry.after[:5]) == (1, 2, (8, 0, 2, 0, 0))
    assert await parked_count(world) == 3
    assert (await world.row()).rebuild_wanted == 0

    done = await reject_held(world.database, "a", "cannot be true", "ops-1")
    assert (done.rejected, done.applied, done.left, done.hurt) == (1, 2, 0, (("t1", "o1"),))
    assert await parked_count(world) == 0
    row = await world.row()
    assert (row.rebuild_wanted, row.held_version) == (1, 2)
    assert "cannot be true" in row.rebuild_reason
    # Not sold until the epoch is closed: Redis still counts the rejected hold.
    assert await world.balance("a") == (8, 0, 2, 0, 0, 4, 1, DRIFTED)
    rejected = await world.query(
        "SELECT kind, tenant, ref, d_available, available, reason FROM inventory_ledger WHERE seq = 2 AND inventory_key = 'a'"
    )
    assert rejected == [(int(Move.REJECTED), "t1", "o1", 0, 10, "cannot be true")]
    lines = await world.query(
        "SELECT order_id, inventory_key, state FROM inventory_reservation ORDER BY order_id, position"
    )
    confirmed, reserved = int(LineState.CONFIRMED), int(LineState.RESERVED)
    assert lines == [("o1", "b", reserved), ("o2", "a", confirmed), ("o2", "b", confirmed)]
    ((kind, key, _, status, reason, actor, before, after),) = await traces(world)
    assert (kind, key, status, reason, actor) == ("reject_held", "a", "done", "cannot be true", "ops-1")
    assert msgspec.json.decode(before)["hurt"] == [["t1", "o1"]]
    assert msgspec.json.decode(after)["sold"] == 2

    # What Redis still sends of this epoch counts by its deltas; the end of the epoch frees the key.
    log.adjust("a", 5)
    log.entry()
    await world.apply(log.message(log.head_m))
    assert await world.balance("a") == (13, 0, 2, 0, 0, 5, 2, DRIFTED)
    planned = await world.apply(log.close_message())
    assert planned.closed
    assert (await world.balance("a"))[7] == 0
    assert (await world.row()).held_version == 3


async def test_reject_of_a_closed_epoch_frees_the_key_at_once(world: WorkerWorld) -> None:
    log = await poisoned(world)
    await world.apply(log.close_message())
    done = await reject_held(world.database, "a", "cannot be true", "ops-1")
    assert done.left == 0
    assert (await world.balance("a"))[7] == 0
    assert (await world.row()).rebuild_wanted == 0


async def test_reject_what_rests_on_the_rejected_one_next(world: WorkerWorld) -> None:
    log = await poisoned(world)
    log.confirm("o1")
    log.entry()
    await world.apply(log.message(log.head_m))
    first = await reject_held(world.database, "a", "cannot be true", "ops-1")
    assert (first.rejected, first.applied, first.left) == (1, 2, 1)
    assert "no such line" in first.stopped_by
    assert (await world.balance("a"))[7] == HELD | DRIFTED
    second = await reject_held(world.database, "a", "cannot be true either", "ops-1")
    assert (second.rejected, second.left, second.hurt) == (1, 0, (("t1", "o1"),))
    assert (await world.balance("a")) == (8, 0, 2, 0, 0, 5, 1, DRIFTED)
    # The line of the other key was confirmed all the same.
    assert await world.query("SELECT state FROM inventory_reservation WHERE order_id = 'o1'") == [
        (int(LineState.CONFIRMED),)
    ]
    assert await world.query("SELECT open_lines FROM inventory_order WHERE order_id = 'o1'") == [(0,)]


async def test_unheld_or_unknown_key_is_refused(world: WorkerWorld) -> None:
    log = random_log(22, operations=5)
    await world.begin(log)
    for key in (min(log.keys), "nobody"):
        for repair in (replay_held, reject_held):
            with pytest.raises(NotHeld):
                await repair(world.database, key, "why", "ops-1")
    assert await traces(world) == []
