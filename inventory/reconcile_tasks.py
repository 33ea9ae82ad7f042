"""`inventory_reconcile_task`: comparisons that somebody asked for, and what the periodic one saw last."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

import sql
from inventory import operator_actions
from inventory.compare import Findings, KeyClass
from inventory.operator_actions import Action, Came
from kernel.mysql_door import Database, Transaction

RUNNING_MS_MAX: Final = 60_000
"""A task that has been running for longer belongs to a process that died; repeating it is harmless."""


class Task(NamedTuple):
    """A comparison to run."""

    task_id: int
    shard: int
    dry_run: bool
    keys: list[str]
    status: str
    started_ms: int


async def pending(database: Database, now_ms: int) -> list[Task]:
    """Tasks that nobody has begun, or that a dead process left."""
    rows = await database.fetch_all(sql.load("select_reconcile_tasks_to_run"), (now_ms - RUNNING_MS_MAX, 10))
    return [
        Task(row[0], row[1], bool(row[2]), msgspec.json.decode(row[3], type=list[str]), row[4], row[5]) for row in rows
    ]


async def claim(database: Database, task: Task, now_ms: int) -> bool:
    """Take a task; False if another process was quicker."""
    async with database.transaction() as transaction:
        parameters = (max(now_ms, task.started_ms + 1), task.task_id, task.status, task.started_ms)
        return await transaction.execute(sql.load("update_reconcile_task_claimed"), parameters) == 1


async def finish(database: Database, task_id: int, findings: Findings | None, now_ms: int) -> None:
    """End a task: DONE, or NOT_OPEN where the shard had no open epoch to compare."""
    status = "NOT_OPEN" if findings is None else "DONE"
    found = findings or Findings(0)
    async with database.transaction() as transaction:
        parameters = (status, found.epoch, *_counts(found), found.detail[:500], now_ms, task_id)
        await transaction.execute(sql.load("update_reconcile_task_done"), parameters)
        await operator_actions.finish_reconcile(transaction, task_id, _came_of(findings), now_ms)


def _came_of(findings: Findings | None) -> Came:
    """What a comparison came to, for whoever asked for it."""
    if findings is None:
        return Came("STOPPED", detail="the shard had no open epoch to compare")
    counts = {key_class.value: findings.classes[key_class] for key_class in KeyClass}
    after = msgspec.json.encode({**counts, "repaired": findings.repaired, "stuck": findings.stuck}).decode()
    return Came("DONE", after=after, detail=findings.detail)


async def record_periodic(database: Database, shard: int, findings: Findings, started_ms: int, now_ms: int) -> None:
    """Keep the shard's one periodic row up to date; a pass that found something leaves a row of its own beside it."""
    async with database.transaction() as transaction:
        existing = await transaction.fetch_one(sql.load("select_periodic_reconcile_task"), (shard,))
        if existing is None:
            await _insert(transaction, shard, findings, "PERIODIC", started_ms, now_ms)
        else:
            parameters = (findings.epoch, *_counts(findings), findings.detail[:500], started_ms, now_ms, existing[0])
            await transaction.execute(sql.load("update_periodic_reconcile_task"), parameters)
        if findings.worth_a_task:
            await _insert(transaction, shard, findings, "DONE", started_ms, now_ms)


async def request(database: Database, shard: int, keys: Sequence[str], action: Action, now_ms: int) -> int:
    """Ask the reconciler for a comparison, with the row that says who and why; answers the task's number.

    Raises BadReason where the action may repair and gives none, and what the door raises.
    """
    async with database.transaction() as transaction:
        await transaction.execute(
            sql.load("insert_reconcile_task"),
            (
                *(shard, 0, "keys" if keys else "shard", int(action.dry_run)),
                *(msgspec.json.encode(list(keys)).decode(), "PENDING", 0, 0, 0, 0, 0, 0, 0, "", action.actor, 0, 0),
            ),
        )
        row = await transaction.fetch_one(sql.load("select_inserted_id"))
        if row is None:
            raise LookupError("the new task has no number")
        await operator_actions.insert(transaction, action, now_ms, reconcile_task=int(row[0]))
    return int(row[0])


async def _insert(
    transaction: Transaction, shard: int, findings: Findings, status: str, started_ms: int, now_ms: int
) -> None:
    await transaction.execute(
        sql.load("insert_reconcile_task"),
        (
            *(shard, findings.epoch, "shard", 0, "[]", status),
            *(*_counts(findings), findings.detail[:500], "reconciler", started_ms, now_ms),
        ),
    )


def _counts(findings: Findings) -> tuple[Any, ...]:
    order = (KeyClass.COLD, KeyClass.IN_FLIGHT, KeyClass.HEALTHY, KeyClass.DRIFTED, KeyClass.LOST)
    return (*(findings.classes[key_class] for key_class in order), findings.repaired, findings.stuck)


class TaskView(NamedTuple):
    """A comparison as it is shown. Counts are keys, times UTC epoch ms, 0 = not yet."""

    task_id: int
    shard: int
    epoch: int
    scope: str
    dry_run: bool
    status: str
    cold: int
    in_flight: int
    healthy: int
    drifted: int
    lost: int
    repaired: int
    stuck: int
    detail: str
    requested_by: str
    started_ms: int
    finished_ms: int


async def read_task(database: Database, task_id: int) -> TaskView | None:
    """One comparison; None if there is none with this number."""
    rows = await database.fetch_all(sql.load("select_reconcile_task"), (task_id,))
    return TaskView(*rows[0])._replace(dry_run=bool(rows[0][4])) if rows else None


async def read_periodic(database: Database, shard: int) -> TaskView | None:
    """What the periodic comparison of a shard saw last; None before its first pass."""
    rows = await database.fetch_all(sql.load("select_periodic_reconcile_task"), (shard,))
    return await read_task(database, int(rows[0][0])) if rows else None
