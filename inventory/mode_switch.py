"""Switches of a shard's mode: who decides, Redis (`hot`) or MySQL (`db`). A wish in the row, carried out by the leader.

A switch begins with one transaction that names it in the shard's row and in the operators' audit table. Every leader reads
the row, carries the switch out, and appends each step as it is reached; whoever becomes leader later goes on. All
transactions that move a switch lock the shard's row first, exclusively, so that abort, CLOSE and end exclude each other.

| to | steps |
| --- | --- |
| db | `fence` (if Redis answers), `drain` (its log is relayed and confirmed), `close` (CLOSE may be published: no abort any more), `closed` (MySQL decides) |
| hot | `lock` (nobody decides), `open` (an epoch is drawn, the row is hot), `unfence` (Redis decides); `back` where Redis went away in between |
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

import msgspec

import sql
from inventory import operator_actions
from inventory.operator_actions import Action, Came
from kernel import limits
from kernel.clock import instant
from kernel.mysql_door import Database, Transaction

ToMode = Literal["hot", "db"]
Step = Literal["fence", "drain", "close", "closed", "lock", "open", "unfence", "back"]
Status = Literal["RUNNING", "DONE", "ABORTED", "FAILED"]
"""FAILED: it could not be brought to its end, and another may be asked for."""

DETAIL_CHARS_MAX: Final = 500


class SwitchRefused(Exception):
    """Nothing has changed: the row does not allow it."""


class SwitchRunning(SwitchRefused):
    """A switch runs, and only one may."""

    def __init__(self, switch_id: int, to_mode: str) -> None:
        super().__init__(f"switch {switch_id} to {to_mode} runs")
        self.switch_id = switch_id
        self.to_mode = to_mode


class AlreadyThere(SwitchRefused):
    """The shard is in that mode, or on its way to it, and no switch runs."""

    def __init__(self, mode: str) -> None:
        super().__init__(f"the shard is {mode}")
        self.mode = mode


class Outdated(SwitchRefused):
    """Something was asked for after this wish; or the wish is of a time to come, and would count for ever."""


class NoSwitch(SwitchRefused):
    """No switch runs."""

    def __init__(self) -> None:
        super().__init__("no switch runs")


class TooLate(SwitchRefused):
    """The switch has gone so far that it can only be carried on."""

    def __init__(self, switch_id: int, to_mode: str) -> None:
        super().__init__(f"switch {switch_id} to {to_mode} has gone too far to be aborted")
        self.switch_id = switch_id
        self.to_mode = to_mode


class StepView(msgspec.Struct, frozen=True):
    """A step and when it was reached first, by MySQL's clock or the leader's."""

    step: Step
    at: datetime


class SwitchView(msgspec.Struct, frozen=True):
    """A switch as it is shown. `detail` says why it waits, or what there is to say of its end; often empty."""

    id: int
    shard: int
    to_mode: ToMode
    status: Status
    reason: str
    requested_by: str
    requested_at: datetime
    finished_at: datetime | None
    detail: str
    steps: list[StepView]


class _Locked(NamedTuple):
    """The columns of the locked shard row. `now_ms` is MySQL's clock."""

    mode: str
    epoch: int
    term: int
    switch_id: int
    switch_to: str
    now_ms: int


async def request_switch(
    database: Database, shard: int, to_mode: ToMode, action: Action, *, wished_ms: int | None = None
) -> int:
    """Begin a switch; its id. With `action.dry_run` only the checks are made and the action noted; the id is 0 then.

    `wished_ms` (UTC epoch ms) is when configuration decided this, for the newest wish counts, whenever it is read. Raises
    Outdated then, SwitchRunning, AlreadyThere, BadReason and what the door raises. After an unknown COMMIT a repeat finds the switch
    running.
    """
    async with database.transaction() as transaction:
        row = await _lock(transaction, shard)
        if wished_ms is not None:
            await _check_newest(transaction, shard, wished_ms, row.now_ms)
        if row.switch_id:
            raise SwitchRunning(row.switch_id, row.switch_to)
        # An opening leads to hot by itself; to db it can be turned.
        if row.mode == to_mode or (row.mode == "opening" and to_mode == "hot"):
            raise AlreadyThere(row.mode)
        action_id = await operator_actions.insert(transaction, action, row.now_ms)
        if action.dry_run:
            came = Came(
                "DONE", before=_image(row.mode), after=_image(row.mode), detail=f"a switch to {to_mode} could begin"
            )
            await operator_actions.insert_outcome(transaction, action_id, came, row.now_ms)
            return 0
        await transaction.execute(
            sql.load("insert_mode_switch"),
            (shard, to_mode, action.reason.strip(), action.actor, row.now_ms, action_id),
        )
        found = await transaction.fetch_one(sql.load("select_inserted_id"))
        if found is None:
            raise LookupError("the new switch has no number")
        switch_id = int(found[0])
        await transaction.execute(sql.load("update_shard_switch"), (switch_id, to_mode, shard))
        return switch_id


async def abort_switch(database: Database, shard: int, action: Action) -> int:
    """End the running switch where that is still harmless; its id. The leader goes on in the mode that it finds.

    A switch to db ends until the step `close`, one to hot while MySQL decides. Raises NoSwitch, TooLate, BadReason and what
    the door raises. With `action.dry_run` only the checks are made and the action noted.
    """
    async with database.transaction() as transaction:
        row = await _lock(transaction, shard)
        if not row.switch_id:
            raise NoSwitch
        if row.switch_to == "hot":
            late = row.mode != "db"
        else:
            late = row.mode == "db" or "close" in await _steps(transaction, row.switch_id)
        if late:
            raise TooLate(row.switch_id, row.switch_to)
        action_id = await operator_actions.insert(transaction, action, row.now_ms)
        detail = f"switch {row.switch_id} to {row.switch_to}"
        came = Came("DONE", before=_image(row.mode), after=_image(row.mode), detail=detail)
        await operator_actions.insert_outcome(transaction, action_id, came, row.now_ms)
        if not action.dry_run:
            await _end(transaction, shard, row, "ABORTED", f"aborted by {action.actor}")
        return row.switch_id


async def read_switch(database: Database, shard: int, switch_id: int | None = None) -> SwitchView | None:
    """The switch asked for, else the shard's newest: the running one if one runs. None if there is none."""
    if switch_id is None:
        rows = await database.fetch_all(sql.load("select_newest_mode_switch"), (shard,))
    else:
        rows = await database.fetch_all(sql.load("select_mode_switch"), (switch_id, shard))
    if not rows:
        return None
    number, _, to_mode, reason, requested_by, requested_ms, status, finished_ms, detail, _ = rows[0]
    steps = await database.fetch_all(sql.load("select_mode_switch_steps"), (number,))
    return SwitchView(
        id=number,
        shard=shard,
        to_mode=to_mode,
        status=status,
        reason=reason,
        requested_by=requested_by,
        requested_at=instant(requested_ms),
        finished_at=instant(finished_ms) if finished_ms else None,
        detail=detail,
        steps=[StepView(step, instant(at_ms)) for step, at_ms in steps],
    )


async def append_step(database: Database, shard: int, switch_id: int, term: int, step: Step) -> bool:
    """Note a step of the leader of this term; False where the switch does not run any more, or another leads."""
    async with database.transaction() as transaction:
        row = await _lock(transaction, shard)
        if not _owns(row, switch_id, term):
            return False
        await add_steps(transaction, switch_id, (step,), row.now_ms)
        return True


async def claim_close(database: Database, shard: int, switch_id: int, term: int) -> bool:
    """Note the step `close`, after which there is no abort; False where CLOSE must not be published.

    May be repeated: whoever goes on with a switch claims it again.
    """
    async with database.transaction() as transaction:
        row = await _lock(transaction, shard)
        if not _owns(row, switch_id, term) or row.switch_to != "db" or row.mode != "hot":
            return False
        await add_steps(transaction, switch_id, ("close",), row.now_ms)
        return True


async def finish(
    database: Database,
    shard: int,
    switch_id: int,
    term: int,
    *,
    status: Status = "DONE",
    steps: Sequence[Step] = (),
    detail: str | None = None,
) -> bool:
    """End the switch, by the leader of this term; False where it does not run any more, or another leads.

    Without a `detail` the one stays that was noted last.
    """
    async with database.transaction() as transaction:
        row = await _lock(transaction, shard)
        if not _owns(row, switch_id, term):
            return False
        await add_steps(transaction, switch_id, steps, row.now_ms)
        await _end(transaction, shard, row, status, detail)
        return True


async def note(database: Database, switch_id: int, detail: str) -> None:
    """Say why the switch waits; an empty text says that it goes on."""
    async with database.transaction() as transaction:
        await transaction.execute(sql.load("update_mode_switch_detail"), (detail[:DETAIL_CHARS_MAX], switch_id))


async def add_steps(transaction: Transaction, switch_id: int, steps: Sequence[Step], now_ms: int) -> None:
    """Note steps in a transaction that has the shard's row locked; those that are there already stay as they are."""
    known = await _steps(transaction, switch_id)
    rows = [
        (switch_id, number, step, now_ms)
        for number, step in enumerate((step for step in steps if step not in known), len(known) + 1)
    ]
    await transaction.execute_many(sql.load("insert_mode_switch_step"), rows)


async def _check_newest(transaction: Transaction, shard: int, wished_ms: int, now_ms: int) -> None:
    if wished_ms > now_ms + limits.CLOCK_SKEW_MS_MAX:
        raise Outdated(f"the wish is of {instant(wished_ms):%Y-%m-%d %H:%M:%S} UTC, and that is still to come")
    newest = await transaction.fetch_one(sql.load("select_newest_mode_switch"), (shard,))
    if newest is not None and int(newest[5]) >= wished_ms:
        raise Outdated(f"switch {newest[0]} to {newest[2]} was asked for later")


async def _lock(transaction: Transaction, shard: int) -> _Locked:
    row = await transaction.fetch_one(sql.load("lock_shard_switch"), (shard,))
    if row is None:
        raise LookupError(f"shard {shard} has no row: the migrations have not run")
    return _Locked(*row)


def _image(mode: str) -> str:
    return msgspec.json.encode({"mode": mode}).decode()


def _owns(row: _Locked, switch_id: int, term: int) -> bool:
    return row.switch_id == switch_id != 0 and row.term == term


async def _steps(transaction: Transaction, switch_id: int) -> list[str]:
    return [step for step, _ in await transaction.fetch_all(sql.load("select_mode_switch_steps"), (switch_id,))]


async def _end(transaction: Transaction, shard: int, row: _Locked, status: Status, detail: str | None) -> None:
    """End the row's switch, and say what came of the action that began it."""
    found = await transaction.fetch_one(sql.load("select_mode_switch"), (row.switch_id, shard))
    if found is None:
        raise LookupError(f"the shard's row names switch {row.switch_id}, and there is none")
    said = (str(found[8]) if detail is None else detail)[:DETAIL_CHARS_MAX]
    ended = (status, row.now_ms, said, row.switch_id)
    await transaction.execute(sql.load("update_mode_switch_finished"), ended)
    await transaction.execute(sql.load("update_shard_switch"), (0, "", shard))
    came = Came("DONE" if status == "DONE" else "STOPPED", after=_image(row.mode), detail=said)
    await operator_actions.insert_outcome(transaction, int(found[-1]), came, row.now_ms)
