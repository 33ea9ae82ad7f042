"""The operators' audit table: who did what to which target, why, and what came of it.

Nothing is changed without its row: `carry_out` commits the row first and appends the outcome afterwards; what changes MySQL
alone inserts it in its own transaction (`insert`). A process that dies in between leaves a row without an outcome, which
is shown as PENDING: it may have been done. Changes of stock by a request number have their row in the ledger, with the
key's name and the reason, and are not written twice; `read_page` shows both in one sequence.
"""

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

import sql
from inventory.moves import Move, Quantities
from kernel import limits
from kernel.clock import Clock, instant
from kernel.errors import StockgateError
from kernel.logs import get_logger
from kernel.mysql_door import Database, Transaction

Outcome = Literal["PENDING", "DONE", "STOPPED", "INTERRUPTED"]
"""PENDING: begun, and its end was never told. STOPPED: it did not come to its end, and `detail` says why and how far.
INTERRUPTED: a store failed in the middle; what was committed by then stays."""

IMAGE_CHARS_MAX: Final = 1_000
DETAIL_CHARS_MAX: Final = 500
TARGET_CHARS_MAX: Final = 128

_NEWEST: Final = limits.EXACT_INTEGER_MAX
_Done = TypeVar("_Done")

log = get_logger()


class BadReason(ValueError):
    """The reason is missing, too long, or holds what cannot be printed."""


class BadCursor(ValueError):
    """The cursor was not made by `read_page`."""


class Action(NamedTuple):
    """What somebody is about to do. `actor` is an API key's name or `cli:` and the user at the command line."""

    actor: str
    action: str
    """`reconcile` or a kind of repair."""
    target: str
    """An inventory key, or what else it is done to."""
    reason: str
    dry_run: bool = False
    tenant: str = ""
    request_id: str = ""
    trace_id: str = ""


class Came(NamedTuple):
    """What came of an action. Images are JSON texts, cut to what the table holds."""

    outcome: Outcome
    before: str = ""
    after: str = ""
    detail: str = ""


class ActionView(msgspec.Struct, frozen=True):
    """One action as it is shown, whether it has its row in the audit table or in the ledger."""

    source: Literal["operator_action", "inventory_ledger"]
    id: int
    """Unique within its source."""
    at: datetime
    actor: str
    tenant: str
    action: str
    target: str
    reason: str
    approval_no: str
    request_no: str
    """Of a change in the ledger."""
    request_id: str
    trace_id: str
    dry_run: bool
    outcome: Outcome
    before: str
    after: str
    detail: str
    finished_at: datetime | None
    reconcile_task: int | None


class ActionPage(msgspec.Struct):
    """Actions, the newest first, and the cursor of the page after this one; null at the end."""

    actions: list[ActionView]
    next_before: str | None


def check_reason(reason: str) -> str:
    """The reason without spaces around it; raises BadReason unless it is 1 to 200 printable characters."""
    reason = reason.strip()
    if not reason:
        raise BadReason("a reason is needed: say why, for whoever reads the audit table later")
    if len(reason) > limits.REASON_CHARS_MAX:
        raise BadReason(f"the reason has {len(reason)} characters, at most {limits.REASON_CHARS_MAX} are kept")
    if not reason.isprintable():
        raise BadReason("the reason holds characters that cannot be printed")
    return reason


def with_approval(reason: str, approval_no: str | None) -> str:
    """The reason as the ledger keeps it. Raises BadReason for a reason that would read as if it had an approval."""
    if split_approval(reason)[1]:
        raise BadReason("ends like an approval: give its number as approval_no")
    return reason if approval_no is None else f"{reason}{_APPROVAL}{approval_no})"


_APPROVAL: Final = " (approval "


def split_approval(reason: str) -> tuple[str, str]:
    """Reason and approval number ("" without one) out of what `with_approval` made; a number holds no space."""
    text, found, number = reason.rpartition(_APPROVAL)
    if not found or not number.endswith(")") or " " in number or len(number) < 2:
        return reason, ""
    return text, number[:-1]


async def insert(transaction: Transaction, action: Action, now_ms: int, reconcile_task: int = 0) -> int:
    """Insert the action's row into a transaction that changes what it speaks of; its id. Raises BadReason too."""
    reason = action.reason.strip() if action.dry_run and not action.reason.strip() else check_reason(action.reason)
    row = (
        *(now_ms, action.actor, action.tenant, action.action, action.target[:TARGET_CHARS_MAX], reason),
        *(action.request_id, action.trace_id, int(action.dry_run), reconcile_task),
    )
    await transaction.execute(sql.load("insert_operator_action"), row)
    found = await transaction.fetch_one(sql.load("select_inserted_id"))
    if found is None:
        raise LookupError("the new action has no number")
    return int(found[0])


async def carry_out(
    database: Database,
    action: Action,
    work: Callable[[], Awaitable[_Done]],
    came_of: Callable[[_Done], Came],
    clock: Clock,
) -> _Done:
    """Note the action, do it, note what came of it; raises BadReason, and what the door and the work raise.

    If the row cannot be written nothing is done. If the outcome cannot be written the result is returned all the same, and
    the row stays PENDING.
    """
    async with database.transaction() as transaction:
        action_id = await insert(transaction, action, clock.now_ms())
    try:
        done = await work()
    except StockgateError as failure:
        await _finish(database, action_id, Came("INTERRUPTED", detail=str(failure)), clock.now_ms())
        raise
    await _finish(database, action_id, came_of(done), clock.now_ms())
    return done


async def insert_outcome(transaction: Transaction, action_id: int, came: Came, now_ms: int) -> None:
    """Note what came of an action; a second outcome is refused."""
    row = (
        *(action_id, came.outcome, came.before[:IMAGE_CHARS_MAX], came.after[:IMAGE_CHARS_MAX]),
        *(came.detail[:DETAIL_CHARS_MAX], now_ms),
    )
    await transaction.execute(sql.load("insert_operator_action_outcome"), row)


async def _finish(database: Database, action_id: int, came: Came, now_ms: int) -> None:
    try:
        async with database.transaction() as transaction:
            await insert_outcome(transaction, action_id, came, now_ms)
    except StockgateError as failure:
        # The action is over and its result known: a row that stays PENDING says less than that, but nothing false.
        log.warning("outcome of an operator's action not written", action_id=action_id, reason=str(failure))


async def finish_reconcile(transaction: Transaction, task_id: int, came: Came, now_ms: int) -> None:
    """Note what came of the action that asked for a comparison, if anybody did, in the transaction that ends the task."""
    row = (came.outcome, came.after[:IMAGE_CHARS_MAX], came.detail[:DETAIL_CHARS_MAX], now_ms, task_id)
    await transaction.execute(sql.load("insert_reconcile_task_outcome"), row)


async def read_page(database: Database, limit: int, before: str = "") -> ActionPage:
    """The newest actions of both sources, or those after the cursor `before`; raises BadCursor and what the door raises.

    Each source has its own place in the cursor, so that no row is shown twice or left out, whatever their clocks say.
    """
    places = _places(before)
    actions = await database.fetch_all(sql.load("select_operator_actions"), (places[0], limit))
    changes = await database.fetch_all(sql.load("select_operator_changes"), (places[1], limit))
    views = _merged([_action_view(row) for row in actions], [_change_view(row) for row in changes])
    page = views[:limit]
    last = dict(zip(_SOURCES, places, strict=True)) | {view.source: view.id for view in page}
    more = len(views) > limit or len(actions) == limit or len(changes) == limit
    cursor = ".".join(str(last[source]) for source in _SOURCES)
    return ActionPage(page, cursor if more else None)


_SOURCES: Final = ("operator_action", "inventory_ledger")


def _places(cursor: str) -> tuple[int, int]:
    if not cursor:
        return _NEWEST, _NEWEST
    parts = cursor.split(".")
    if len(parts) != len(_SOURCES) or not all(part.isascii() and part.isdecimal() and len(part) < 17 for part in parts):
        raise BadCursor("the cursor is not one that a page gave")
    return int(parts[0]), int(parts[1])


def _merged(actions: Sequence[ActionView], changes: Sequence[ActionView]) -> list[ActionView]:
    """Both sequences in one, the later head first; the order within each stays as it is."""
    merged: list[ActionView] = []
    left, right = list(reversed(actions)), list(reversed(changes))
    while left and right:
        merged.append(left.pop() if left[-1].at >= right[-1].at else right.pop())
    return [*merged, *reversed(left), *reversed(right)]


def _action_view(row: Sequence[Any]) -> ActionView:
    action_id, at_ms, actor, tenant, action, target, reason, request_id, trace_id, dry_run, task = row[:11]
    outcome, before, after, detail, finished_ms = row[11:]
    return ActionView(
        source="operator_action",
        id=action_id,
        at=instant(at_ms),
        actor=actor,
        tenant=tenant,
        action=action,
        target=target,
        reason=reason,
        approval_no="",
        request_no="",
        request_id=request_id,
        trace_id=trace_id,
        dry_run=bool(dry_run),
        outcome=outcome,
        before=before,
        after=after,
        detail=detail,
        finished_at=instant(finished_ms) if finished_ms else None,
        reconcile_task=task or None,
    )


def _change_view(row: Sequence[Any]) -> ActionView:
    change_id, at_ms, actor, tenant, kind, key, reason, request_no, trace_id, seq = row[:10]
    after, deltas = Quantities(*row[10:15]), Quantities(*row[15:20])
    created_by_request: str = row[20]
    text, approval_no = split_approval(reason)
    before = Quantities(*(now - delta for now, delta in zip(after, deltas, strict=True)))
    return ActionView(
        source="inventory_ledger",
        id=change_id,
        at=instant(at_ms),
        actor=actor,
        tenant=tenant,
        action="create" if created_by_request else Move(kind).name.lower(),
        target=key,
        reason=text,
        approval_no=approval_no,
        request_no=created_by_request or request_no,
        request_id="",
        trace_id=trace_id,
        dry_run=False,
        outcome="DONE",
        before=image(before),
        after=image(after),
        detail=f"seq {seq}",
        finished_at=instant(at_ms),
        reconcile_task=None,
    )


def image(quantities: Quantities) -> str:
    """Five quantities as JSON by name."""
    return msgspec.json.encode(quantities._asdict()).decode()
