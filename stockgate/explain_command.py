"""`stockgate explain`: why a key's number is what it is, or why an order stands as it does.

It asks the stores itself, so that it works where no gateway does, and with one store away it shows what the other has.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from inventory.explain_key import InMySQLView, InRedisView, KeyExplanation, explain_key
from inventory.explain_log import InFlight, LogView
from inventory.explain_order import LineSide, OrderExplanation, explain_order
from inventory.explain_stores import Parked, Stale
from inventory.explain_timeline import Amounts, Step
from inventory.explain_verdict import Finding
from inventory.operator_actions import BadCursor
from kernel import limits
from kernel.errors import StockgateError
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import shard_of
from kernel.settings import Settings
from stockgate.sections import Section, show

Explanation = KeyExplanation | OrderExplanation

STORE_COLUMNS: Final = ("store", "available", "reserved", "sold", "consumed", "locked", "total", "seq", "version", "")
STEP_COLUMNS: Final = (
    "at (UTC)",
    "seq",
    "move",
    "change",
    "available, reserved, sold, consumed, locked",
    "who",
    "for",
    "why",
    "trace",
)


class Refusal(Exception):
    """What was asked about is unknown, or asked in a wrong way."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def run(
    settings: Settings,
    *,
    key: str | None,
    order: str | None,
    tenant: str,
    limit: int,
    page: str,
    as_json: bool,
) -> int:
    """Print an explanation; exit code 0 only if all is well. `page` is the cursor that the page before printed."""
    try:
        if (key is None) == (order is None):
            raise Refusal("INVALID_REQUEST", "name either a key or, with --order, an order")
        explanation = asyncio.run(_explain(settings, key or "", order or "", tenant, limit, page))
    except (Refusal, StockgateError) as failure:
        code = failure.code if isinstance(failure, Refusal) else "UNAVAILABLE"
        if as_json:
            _print_json({"ok": False, "code": code, "error": str(failure)})
        else:
            show([Section(code, [str(failure)], style="red")])
        return 1
    if as_json:
        _print_json(explanation)
    else:
        show(sections(explanation))
    return 0 if explanation.ok else 1


def _print_json(value: object) -> None:
    print(msgspec.json.encode(value).decode())  # noqa: T201 -- the command's answer


async def _explain(
    settings: Settings, key: str, order_id: str, tenant: str, limit: int, page: str
) -> KeyExplanation | OrderExplanation:
    name = order_id or key
    if not (name.isascii() and name.isprintable() and len(name) <= limits.INVENTORY_KEY_CHARS_MAX):
        raise Refusal("INVALID_REQUEST", "keys and order ids are short texts of printable ASCII")
    database = await Database.open(settings, name="explain")
    redis = RedisDoor.open(settings, name="explain")
    try:
        if order_id:
            try:
                order = await explain_order(database, redis, 0, tenant, order_id, limit, page)
            except BadCursor as wrong:
                raise Refusal("INVALID_REQUEST", f"--page: {wrong}") from None
            if order is None:
                raise Refusal("UNKNOWN_ORDER", f"tenant {tenant} has no order {order_id}; --tenant names another one")
            return order
        if page and not (page.isascii() and page.isdecimal() and len(page) < 17):
            raise Refusal("INVALID_REQUEST", "--page is a seq here: only changes before it are shown")
        before = int(page) if page else limits.EXACT_INTEGER_MAX
        found = await explain_key(database, redis, shard_of(key, settings.shards), key, limit, before)
        if found is None:
            raise Refusal("UNKNOWN_INVENTORY_KEY", f"no key {key}: check its spelling, byte for byte")
        return found
    finally:
        await redis.close()
        await database.close()


# --- for people -------------------------------------------------------------------------------------------------------


def sections(told: Explanation) -> list[Section]:
    """The whole explanation: what to think first, then what it rests on."""
    about = _about_key(told) if isinstance(told, KeyExplanation) else _about_order(told)
    shown = [*(_finding(finding) for finding in told.findings), *about]
    shown += [
        _log(told.log, told.mode, told.epoch),
        *_in_flight(told.in_flight),
        *_parked(told.parked, told.parked_more),
    ]
    shown += [*_stale(told.stale), _timeline(told)]
    return shown


def _finding(finding: Finding) -> Section:
    style = "green" if finding.ok else "red"
    return Section(finding.found.value.upper(), [finding.sentence, f"→ {finding.next_step}"], style=style)


def _about_key(told: KeyExplanation) -> list[Section]:
    stores = Section(
        f"key {told.inventory_key}",
        _missing(told.missing),
        STORE_COLUMNS,
        [("Redis", *_redis_cells(told.redis, told.epoch)), ("MySQL", *_mysql_cells(told.mysql))],
    )
    shown = [stores]
    if told.created is not None:
        made = told.created
        sentence = f"{_time(made.at)} by {made.actor} of {made.tenant}, request {made.request_no}, item {made.item_id}"
        shown.append(Section("created", [f"{sentence}, {made.inventory_mode}, first quantity {made.init_quantity}"]))
    if told.repairs:
        rows = [
            (_time(one.at), one.kind, one.repaired_class, one.status, one.actor, one.reason, one.before, one.after)
            for one in told.repairs
        ]
        columns = ("at (UTC)", "repair", "class", "status", "who", "why", "before", "after")
        shown.append(Section("repairs", (), columns, rows))
    return shown


def _redis_cells(there: InRedisView | None, epoch: int | None) -> tuple[object, ...]:
    if there is None:
        return (*([None] * 8), "not known")
    note = f"epoch {epoch}" + (", frozen" if there.frozen else "") if there.state == "loaded" else there.state
    return (*_numbers(there.quantities), there.seq, there.inventory_version, note)


def _mysql_cells(there: InMySQLView | None) -> tuple[object, ...]:
    if there is None:
        return (*([None] * 8), "not known")
    note = {"no": "", "held": "held: events are parked", "until_close": "held until the epoch ends"}[there.held]
    return (*_numbers(there.quantities), there.seq, there.inventory_version, note)


def _numbers(shown: Amounts | None) -> tuple[object, ...]:
    if shown is None:
        return (None,) * 6
    return shown.available, shown.reserved, shown.sold, shown.consumed, shown.locked, shown.total


def _about_order(told: OrderExplanation) -> list[Section]:
    facts = [f"{told.status}" + (f", buyer {told.buyer_id}" if told.buyer_id else "")]
    if told.created_at:
        facts.append(f"reserved at {_time(told.created_at)} UTC")
    if told.due_at:
        facts.append(f"held until {_time(told.due_at)} UTC")
    traces = [f"traces: {', '.join(told.trace_ids)}"] if told.trace_ids else []
    rows = [
        (line.inventory_key, _side(line.redis), _side(line.mysql), "held" if line.key_held else "")
        for line in told.lines
    ]
    title = f"order {told.order_id} of {told.tenant}"
    return [Section(title, [*_missing(told.missing), ", ".join(facts), *traces], ("key", "Redis", "MySQL", ""), rows)]


def _side(side: LineSide | None) -> str:
    if side is None:
        return ""
    why = f" ({side.reason})" if side.reason else ""
    return f"{side.qty} {side.status}{why}, epoch {side.epoch} seq {side.seq}"


def _missing(stores: Sequence[str]) -> list[str]:
    return [f"does not answer: {', '.join(stores)}"] if stores else []


def _log(log: LogView | None, mode: str | None, epoch: int | None) -> Section:
    if log is None:
        return Section("log", [f"not known; mode {mode or 'not known'}, epoch {epoch or 'not known'}"])
    applied = "not known" if log.applied_m is None else log.applied_m
    fenced = ", fenced" if log.fenced else ""
    where = f"mode {mode or 'not known'}, epoch {epoch}{fenced}"
    return Section("log", [f"{where}: entry {log.head_m} decided, {log.confirmed_m} confirmed, {applied} applied"])


def _in_flight(in_flight: InFlight | None) -> list[Section]:
    if in_flight is None or not (in_flight.changes or in_flight.undecodable or not in_flight.complete):
        return []
    notes: list[str] = []
    if not in_flight.complete:
        notes.append(f"a part of the log only: {in_flight.entries_read} entries were read")
    if in_flight.undecodable:
        notes.append(f"entries that cannot be decoded: {in_flight.undecodable}")
    return [Section("on its way to MySQL", notes, STEP_COLUMNS, [_step(step) for step in in_flight.changes])]


def _parked(parked: Sequence[Parked], more: bool) -> list[Section]:
    if not parked:
        return []
    rows = [
        (_time(one.parked_at), one.inventory_key, one.epoch, one.m, one.seq, f"{one.tenant}/{one.ref}", one.reason)
        for one in parked
    ]
    notes = ["and more"] if more else []
    return [Section("parked", notes, ("since (UTC)", "key", "epoch", "entry", "seq", "for", "why"), rows)]


def _stale(stale: Sequence[Stale]) -> list[Section]:
    if not stale:
        return []
    rows = [(_time(one.noted_at), one.epoch, one.m, one.move, f"{one.tenant}/{one.ref}") for one in stale]
    return [Section("never took effect", (), ("noted (UTC)", "epoch", "entry", "move", "for"), rows)]


def _timeline(told: Explanation) -> Section:
    if isinstance(told, KeyExplanation):
        title, more = "timeline, the newest first", told.next_before
    else:
        title, more = "timeline, all lines", told.next_after
    notes = [f"more: the same command with --page {more}"] if more is not None else []
    columns = STEP_COLUMNS if isinstance(told, KeyExplanation) else ("key", *STEP_COLUMNS)
    rows: list[tuple[object, ...]] = []
    for step in told.timeline:
        cells = _step(step)
        rows.append(cells if isinstance(told, KeyExplanation) else (step.inventory_key, *cells))
        if step.contradiction:
            rows.append(("",) * (len(columns) - 2) + (f"✗ {step.contradiction}", ""))
    return Section(title, notes, columns, rows)


def _step(step: Step) -> tuple[object, ...]:
    names = ("available", "reserved", "sold", "consumed", "locked")
    moved = [(name, getattr(step.delta, name)) for name in names if getattr(step.delta, name)]
    change = ", ".join(f"{amount:+d} {name}" for name, amount in moved) or "nothing"
    after = ", ".join(str(getattr(step.after, name)) for name in names)
    # Only the number that a key's creation makes for its first quantity holds a space.
    whom = step.order_id or ("its creation" if " " in step.request_no else step.request_no)
    buyer = f", buyer {step.buyer_id}" if step.buyer_id else ""
    why = step.reason + (f" (approval {step.approval_no})" if step.approval_no else "")
    who = step.actor or "the clock"
    if step.move == "REJECTED":
        who = f"{who}, rejected by an operator"
    return _time(step.at), step.seq, step.move, change, after, who, f"{step.tenant}/{whom}{buyer}", why, step.trace_id


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"
