"""Operators' changes and their audit table, through the API, the reconciler and the command line, on real servers."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import pytest_asyncio

from inventory import reconcile_tasks
from inventory.compare import Findings, KeyClass
from kernel.mysql_door import Database, Statement
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys
from kernel.settings import Settings
from reconciler import commands
from stockgate.servers import Servers
from tests.integration.http_world import HttpWorld, held_open
from tests.integration.test_http_reservations import refused

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[HttpWorld]:
    async with held_open(servers, tmp_path_factory.mktemp("actions")) as opened:
        yield opened


async def query(world: HttpWorld, text: str, *parameters: object) -> list[tuple[Any, ...]]:
    database = await Database.open(world.settings, name="test")
    try:
        return await database.fetch_all(Statement(text), parameters)
    finally:
        await database.close()


async def change(world: HttpWorld, text: str, *parameters: object) -> None:
    database = await Database.open(world.settings, name="test")
    async with database.transaction() as transaction:
        await transaction.execute(Statement(text), parameters)
    await database.close()


async def listed(world: HttpWorld, **asked: Any) -> dict[str, Any]:
    text = "&".join(f"{name}={value}" for name, value in asked.items())
    reply = await world.call("GET", f"/ops/actions?{text}", caller="ops")
    assert reply.status_code == 200, reply.text
    return reply.json()


async def command(run: Any, *arguments: Any, **named: Any) -> dict[str, Any]:
    """A function of the command line, which has an event loop of its own."""
    return await asyncio.to_thread(run, *arguments, **named)


async def finish(world: HttpWorld, task_id: int, findings: Findings | None) -> None:
    database = await Database.open(world.settings, name="test")
    await reconcile_tasks.finish(database, task_id, findings, 1_790_000_000_000)
    await database.close()


# --- the API ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{}, {"reason": ""}, {"reason": "  "}, {"reason": "x" * 201}, {"reason": "a\u200bb"}])
async def test_a_comparison_that_may_repair_needs_a_reason(world: HttpWorld, body: dict[str, Any]) -> None:
    before = await query(world, "SELECT COUNT(*) FROM inventory_reconcile_task")
    problem = refused(await world.call("POST", "/ops/reconcile", body, caller="ops"), 422, "INVALID_REQUEST")
    assert problem["errors"][0]["path"] == "$.reason"
    assert await query(world, "SELECT COUNT(*) FROM inventory_reconcile_task") == before
    assert await query(world, "SELECT COUNT(*) FROM operator_action") == [(0,)]


async def test_a_task_and_its_row_are_there_together_and_end_together(world: HttpWorld) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-request-id": "ask-1"}
    body = {"keys": ["a"], "reason": "numbers look wrong"}
    reply = await world.call("POST", "/ops/reconcile", body, caller="ops", headers=headers)
    task_id = reply.json()["id"]
    action = (await listed(world, limit=1))["actions"][0]
    expected = {
        "source": "operator_action",
        "actor": "ops",
        "tenant": "acme",
        "action": "reconcile",
        "target": "a",
        "reason": "numbers look wrong",
        "request_id": "ask-1",
        "trace_id": trace,
        "dry_run": False,
        "outcome": "PENDING",
        "finished_at": None,
        "reconcile_task": task_id,
    }
    assert {name: action[name] for name in expected} == expected

    findings = Findings(1, detail="one")
    findings.classes[KeyClass.DRIFTED] = 1
    await finish(world, task_id, findings)
    # A process that was taken for dead may finish its task after another one did.
    await finish(world, task_id, None)
    action = (await listed(world, limit=1))["actions"][0]
    assert (action["outcome"], action["detail"]) == ("DONE", "one")
    assert '"drifted":1' in action["after"]
    assert action["finished_at"] == "2026-09-21T14:13:20Z"


async def test_a_dry_run_needs_no_reason_and_is_known_as_one(world: HttpWorld) -> None:
    reply = await world.call("POST", "/ops/reconcile", {"dry_run": True}, caller="ops")
    assert reply.status_code == 202
    await finish(world, reply.json()["id"], None)
    action = (await listed(world, limit=1))["actions"][0]
    assert (action["dry_run"], action["reason"], action["target"]) == (True, "", "shard 0")
    assert (action["outcome"], action["detail"]) == ("STOPPED", "the shard had no open epoch to compare")


async def test_changes_of_stock_are_listed_from_the_ledger_with_who_and_why(world: HttpWorld) -> None:
    key = await world.stocked(10)
    adjusted = {"delta": 5, "request_no": world.fresh("r"), "reason": "delivery", "approval_no": "A-7"}
    locked = {"qty": 2, "request_no": world.fresh("r"), "reason": "damaged"}
    unlocked = {"qty": 1, "request_no": world.fresh("r"), "reason": "one was fine"}
    for verb, body in (("adjust", adjusted), ("lock", locked), ("unlock", unlocked)):
        reply = await world.call("POST", f"/v1/inventory/{key}/{verb}", body, caller="inventory")
        assert reply.status_code == 200
    await world.settled()
    found = [action for action in (await listed(world))["actions"] if action["target"] == key]
    said = [(a["action"], a["actor"], a["reason"], a["approval_no"], a["request_no"], a["outcome"]) for a in found]
    assert said[:3] == [
        ("unlock", "inventory", "one was fine", "", unlocked["request_no"], "DONE"),
        ("lock", "inventory", "damaged", "", locked["request_no"], "DONE"),
        ("adjust", "inventory", "delivery", "A-7", adjusted["request_no"], "DONE"),
    ]
    assert said[3][:3] == ("create", "all", "first quantity")
    assert said[3][4].startswith("create-"), "the number that the caller gave, not the one made of it"
    assert found[2]["before"] == '{"available":10,"reserved":0,"sold":0,"consumed":0,"locked":0}'
    assert found[2]["after"] == '{"available":15,"reserved":0,"sold":0,"consumed":0,"locked":0}'
    assert await query(world, "SELECT COUNT(*) FROM operator_action WHERE target = %s", key) == [(0,)]


async def test_a_reason_cannot_pretend_an_approval(world: HttpWorld) -> None:
    key = await world.stocked(1)
    body = {"delta": 1, "request_no": world.fresh("r"), "reason": "all fine (approval A-7)"}
    problem = refused(await world.call("POST", f"/v1/inventory/{key}/adjust", body), 422, "INVALID_REQUEST")
    assert problem["errors"][0]["path"] == "$.reason"
    assert await world.quantities(key) == (1, 0, 0, 0, 0)


async def test_pages_show_every_row_of_both_sources_once(world: HttpWorld) -> None:
    for number in range(4):
        await world.stocked(1)
        await world.call("POST", "/ops/reconcile", {"dry_run": True, "reason": f"look {number}"}, caller="ops")
    await world.settled()
    whole = (await listed(world, limit=500))["actions"]
    assert {action["source"] for action in whole} == {"operator_action", "inventory_ledger"}
    paged: list[dict[str, Any]] = []
    page = await listed(world, limit=3)
    while True:
        paged += page["actions"]
        assert len(page["actions"]) <= 3
        if page["next_before"] is None:
            break
        page = await listed(world, limit=3, before=page["next_before"])
    assert paged == whole


@pytest.mark.parametrize(
    "text", ["limit=0", "limit=501", "limit=x", "before=7", "before=", "more=1", "limit=1&limit=2", "=", "%ff=1"]
)
async def test_a_query_that_is_none_is_refused(world: HttpWorld, text: str) -> None:
    refused(await world.call("GET", f"/ops/actions?{text}", caller="ops"), 422, "INVALID_REQUEST")


async def test_only_operators_read_it(world: HttpWorld) -> None:
    for caller in ("orders", "inventory", "metrics"):
        refused(await world.call("GET", "/ops/actions", caller=caller), 403, "FORBIDDEN")


# --- the command line -------------------------------------------------------------------------------------------------


async def drift(world: HttpWorld, key: str, available: int) -> None:
    redis = RedisDoor.open(world.settings, name="test")
    await redis.command("HSET", EpochKeys(0, 1).balance(key), "available", available)
    await redis.close()


async def test_a_repair_has_its_row_with_before_and_after(world: HttpWorld) -> None:
    key = await world.stocked(10)
    await world.settled()
    await drift(world, key, 7)
    named = {"kind": "correct", "target": key}
    dry = await command(commands.repair, world.settings, **named, reason="look first", dry_run=True)
    assert (dry["ok"], dry["class"], dry["repaired"]) == (True, "drifted", 0)
    done = await command(commands.repair, world.settings, **named, reason="ticket 12", dry_run=False)
    assert (done["ok"], done["repaired"]) == (True, 1)
    assert await world.quantities(key) == (10, 0, 0, 0, 0)

    shown = await command(commands.actions, world.settings, limit=2, before="")
    last, first = shown["actions"]
    assert (last["actor"], last["action"], last["target"], last["reason"]) == (
        commands.actor(),
        "correct",
        key,
        "ticket 12",
    )
    assert (last["outcome"], last["before"]) == ("DONE", "[7,0,0,0,0]")
    assert '"after":[10,0,0,0,0]' in last["after"]
    assert (first["dry_run"], first["reason"], first["outcome"]) == (True, "look first", "DONE")


async def test_a_comparison_from_the_command_line_needs_a_reason_unless_it_is_dry(world: HttpWorld) -> None:
    key = await world.stocked(10)
    await world.settled()
    await drift(world, key, 7)
    no_reason = await command(commands.reconcile, world.settings, keys=[key], dry_run=False)
    assert no_reason["ok"] is False
    assert "reason" in no_reason["error"]
    assert (await world.quantities(key))[0] == 7
    dry = await command(commands.reconcile, world.settings, keys=[key], dry_run=True)
    assert [found["class"] for found in dry["shards"][0]["found"]] == ["drifted"]
    done = await command(commands.reconcile, world.settings, keys=[key], dry_run=False, reason="nightly look")
    assert done["shards"][0]["repaired"] == 1
    action = (await listed(world, limit=1))["actions"][0]
    assert (action["action"], action["target"], action["outcome"]) == ("reconcile", key, "DONE")
    assert '"repaired":1' in action["after"]


async def test_what_came_to_nothing_says_so(world: HttpWorld) -> None:
    for kind, target, why in (
        ("replay_held", "no-such-key", "no balance"),
        ("correct", "no-such-key", "unknown"),
        ("rebuild_shard", "7", "no shard"),
    ):
        result = await command(commands.repair, world.settings, kind=kind, target=target, reason="try", dry_run=False)
        assert (result["ok"], why in result["error"]) == (False, True)
        action = (await listed(world, limit=1))["actions"][0]
        assert (action["action"], action["target"]) == (kind, target)
        assert action["outcome"] == "STOPPED"
        assert why in action["detail"]


async def test_without_a_row_nothing_is_changed(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await world.stocked(10)
    await world.settled()
    await drift(world, key, 7)
    await change(world, "RENAME TABLE operator_action TO operator_action_away")
    try:
        result = await command(
            commands.repair, world.settings, kind="correct", target=key, reason="ticket 13", dry_run=False
        )
        assert result["ok"] is False
        reply = await world.call("POST", "/ops/reconcile", {"reason": "ticket 13"}, caller="ops")
        assert reply.status_code == 500
    finally:
        await change(world, "RENAME TABLE operator_action_away TO operator_action")
    assert (await world.quantities(key))[0] == 7
    assert await query(world, "SELECT COUNT(*) FROM inventory_reconcile_task WHERE dry_run = 0") == [(1,)]

    # Dead between the two: the row is there, and it says no more than is known.
    def die(*_: object, **__: object) -> None:
        raise SystemExit(1)

    monkeypatch.setattr(commands, "_correct", die)
    with pytest.raises(SystemExit):
        await command(commands.repair, world.settings, kind="correct", target=key, reason="ticket 14", dry_run=False)
    action = (await listed(world, limit=1))["actions"][0]
    assert (action["reason"], action["outcome"], action["finished_at"]) == ("ticket 14", "PENDING", None)


async def test_an_outcome_that_cannot_be_written_hides_no_result(world: HttpWorld) -> None:
    key = await world.stocked(10)
    await world.settled()
    await drift(world, key, 7)
    await change(world, "RENAME TABLE operator_action_outcome TO outcome_away")
    try:
        result = await command(
            commands.repair, world.settings, kind="correct", target=key, reason="ticket 15", dry_run=False
        )
    finally:
        await change(world, "RENAME TABLE outcome_away TO operator_action_outcome")
    assert (result["ok"], result["repaired"]) == (True, 1)
    action = (await listed(world, limit=1))["actions"][0]
    assert (action["reason"], action["outcome"]) == ("ticket 15", "PENDING")


async def test_the_command_line_says_what_is_missing(world: HttpWorld) -> None:
    settings: Settings = world.settings
    assert "reason" in commands.repair(settings, kind="correct", target="k", reason=" ", dry_run=False)["error"]
    assert "unknown kind" in commands.repair(settings, kind="mend", target="k", reason="x", dry_run=False)["error"]
