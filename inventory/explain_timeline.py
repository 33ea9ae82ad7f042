"""What happened to a key or an order, as steps: rows of the ledger, and events of the log that MySQL does not have. Pure.

Each step is held against the one before it, and what does not follow is said in the step: a hole in the numbers, an
after-image that its deltas do not give, a move that its line's state does not allow.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from inventory.events import Change, Event
from inventory.moves import MOVES, ORDER_MOVES, REQUEST_MOVES, LineState, Move, Quantities
from inventory.operator_actions import split_approval
from kernel.clock import instant


class Amounts(msgspec.Struct, frozen=True):
    """Five quantities in units of stock, or what a change added to each, and their sum."""

    available: int
    reserved: int
    sold: int
    consumed: int
    locked: int
    total: int


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one key. `source` says whether MySQL has it or it is still in the log."""

    source: Literal["ledger", "log"]
    inventory_key: str
    seq: int
    at: datetime
    """By Redis' clock."""
    move: str
    actor: str
    """Name of the API key; empty where the clock released a hold. Of a REJECTED step it is whose change was rejected: the
    operator who did that, and whose the reason is, stands in the key's repairs."""
    tenant: str
    buyer_id: str
    order_id: str
    """Empty for an operator's change."""
    request_no: str
    """Empty for an order's change."""
    reason: str
    approval_no: str
    trace_id: str
    qty: int
    status: str
    """Of the order's line afterwards; empty for an operator's change."""
    delta: Amounts
    after: Amounts
    inventory_version: int
    due_at: datetime | None
    epoch: int
    m: int
    confirmed: bool
    """Whether the broker has it, so that the caller was told; what MySQL has, it has."""
    contradiction: str = ""
    """Why this step does not follow from the one before it."""


def amounts(quantities: Quantities) -> Amounts:
    """Five quantities as they are shown."""
    return Amounts(*quantities, quantities.total)


def quantities_of(shown: Amounts) -> Quantities:
    """The five quantities that are shown."""
    return Quantities(shown.available, shown.reserved, shown.sold, shown.consumed, shown.locked)


def ledger_step(row: Sequence[Any]) -> Step:
    """A step from a row of `select_ledger_to_explain`, or of `select_order_ledger_to_explain`."""
    key, seq, epoch, m, kind, tenant, ref, state, qty = row[:9]
    version, due_ms, at_ms, trace_id, actor, reason, buyer_id = row[19:]
    move = Move(kind)
    text, approval_no = split_approval(reason) if move is Move.ADJUST else (reason, "")
    return Step(
        source="ledger",
        inventory_key=key,
        seq=seq,
        at=instant(at_ms),
        move=move.name,
        actor=actor,
        tenant=tenant,
        buyer_id=buyer_id,
        order_id="" if move in REQUEST_MOVES else ref,
        request_no=ref if move in REQUEST_MOVES else "",
        reason=text,
        approval_no=approval_no,
        trace_id=trace_id,
        qty=qty,
        status=state_name(state),
        delta=amounts(Quantities(*row[9:14])),
        after=amounts(Quantities(*row[14:19])),
        inventory_version=version,
        due_at=instant(due_ms) if due_ms else None,
        epoch=epoch,
        m=m,
        confirmed=True,
    )


def log_step(change: Change, event: Event, epoch: int, m: int, *, confirmed: bool) -> Step:
    """A step from an event of entry `m` of the epoch's log."""
    text, approval_no = split_approval(change.reason) if change.kind is Move.ADJUST else (change.reason, "")
    deltas = Quantities(event.d_available, event.d_reserved, event.d_sold, event.d_consumed, event.d_locked)
    after = Quantities(event.available, event.reserved, event.sold, event.consumed, event.locked)
    return Step(
        source="log",
        inventory_key=event.inventory_key,
        seq=event.seq,
        at=instant(change.at_ms),
        move=change.kind.name,
        actor=change.actor,
        tenant=change.tenant,
        buyer_id=change.buyer_id,
        order_id="" if change.kind in REQUEST_MOVES else change.ref,
        request_no=change.ref if change.kind in REQUEST_MOVES else "",
        reason=text,
        approval_no=approval_no,
        trace_id=change.trace_id,
        qty=event.qty,
        status=state_name(event.state),
        delta=amounts(deltas),
        after=amounts(after),
        inventory_version=event.version,
        due_at=instant(change.due_ms) if change.due_ms else None,
        epoch=epoch,
        m=m,
        confirmed=confirmed,
    )


def state_name(state: int) -> str:
    """The word for a line's state, "" for none; damage is shown as the number it is."""
    try:
        return LineState(state).name if state else ""
    except ValueError:
        return f"state {state}"


_NOTHING: Final = Quantities(0, 0, 0, 0, 0)


def checked_key(newest_first: Sequence[Step], limit: int) -> list[Step]:
    """The first `limit` steps of one key, each held against the one behind it.

    Give one step more than is shown, if there is one: without it the last one has to be the key's very first.
    """
    shown: list[Step] = []
    for place, step in enumerate(newest_first[:limit]):
        older = newest_first[place + 1] if place + 1 < len(newest_first) else None
        wrong = _key_contradiction(step, older)
        shown.append(msgspec.structs.replace(step, contradiction=wrong) if wrong else step)
    return shown


def _key_contradiction(step: Step, older: Step | None) -> str:
    seq = older.seq if older else 0
    if step.seq != seq + 1:
        first, last = seq + 1, step.seq - 1
        return f"seq {first} is missing" if first == last else f"seq {first} to {last} are missing"
    before = quantities_of(older.after) if older else _NOTHING
    given = Quantities(*(had + moved for had, moved in zip(before, quantities_of(step.delta), strict=True)))
    if given != quantities_of(step.after):
        return f"{list(before)} and its deltas give {list(given)}, the after-image is {list(quantities_of(step.after))}"
    version = (older.inventory_version if older else 0) + (Move[step.move] in REQUEST_MOVES)
    if step.inventory_version != version:
        return f"inventory_version {step.inventory_version} where {version} follows"
    return ""


def checked_order(oldest_first: Iterable[Step]) -> list[Step]:
    """All steps of one order from its first, each held against the state in which its line was left."""
    states: dict[str, LineState] = {}
    shown: list[Step] = []
    for step in oldest_first:
        move, wrong = Move[step.move], ""
        if move in ORDER_MOVES:
            rule, state = MOVES[move], states.get(step.inventory_key, LineState.NONE)
            if rule.source is not state:
                wrong = f"{step.move} of a line in state {state.name}"
            elif step.status != rule.target.name:
                wrong = f"{step.move} leads to {rule.target.name}, the row says {step.status or 'NONE'}"
            states[step.inventory_key] = rule.target
        shown.append(msgspec.structs.replace(step, contradiction=wrong) if wrong else step)
    return shown


def last_states(oldest_first: Iterable[Step]) -> dict[str, str]:
    """The state in which the steps leave each key's line."""
    return {step.inventory_key: step.status for step in oldest_first if Move[step.move] in ORDER_MOVES}
