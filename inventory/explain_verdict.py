"""What an operator should think of a key or an order, and do next: one finding for each thing that is to be said. Pure.

The classes of `inventory.compare` keep their names. Those that are added here say what a comparison alone cannot see: that
events are parked, that an event was rejected, that the shard is between two epochs, that a store did not answer.
"""

import shlex
from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from typing import Final

import msgspec

from inventory.explain_timeline import Amounts


class ExplainedClass(Enum):
    """What is found. Several may hold at once; the first one is the class of the whole."""

    UNDETERMINED = "undetermined"
    """A store did not answer, so the two were not compared."""
    CLOSED = "closed"
    """Nobody decides: the shard is between two epochs, or Redis lost the head of this one."""
    DECIDED_BY_MYSQL = "decided_by_mysql"
    """The shard is in db mode: there is one store, and it is right."""
    HELD = "held"
    """Events are parked: an operator decides."""
    REJECTED = "rejected"
    """An event was rejected, and Redis counts it until the epoch ends."""
    LOST = "lost"
    DRIFTED = "drifted"
    IN_FLIGHT = "in_flight"
    COLD = "cold"
    HEALTHY = "healthy"
    # What is said beside the class.
    CONTRADICTION = "contradiction"
    """MySQL contradicts itself."""
    STOPPED = "stopped"
    """The persist worker has stopped the shard."""
    OVERDUE = "overdue"
    """A hold is due and still there."""
    STALE = "stale"
    """Something of a closed epoch never took effect."""


class Finding(msgspec.Struct, frozen=True):
    """One thing found: whether it is well, what to think of it, and what to do next."""

    found: ExplainedClass = msgspec.field(name="class")
    ok: bool
    sentence: str
    next_step: str


NOTHING_TO_DO: Final = "Nothing to do."


def numbers(shown: Amounts) -> str:
    """Quantities in words."""
    return (
        f"{shown.available} available, {shown.reserved} reserved, {shown.sold} sold, {shown.consumed} consumed, "
        f"{shown.locked} locked"
    )


def _count(number: int, what: str) -> str:
    """`1 event`, `2 events`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def command(*words: str) -> str:
    """A command as one would type it."""
    return f"`{shlex.join(('stockgate', *words))}`"


def _explain(key: str) -> str:
    # A key may begin with a dash.
    return command("explain", *(("--", key) if key.startswith("-") else (key,)))


def _repair(kind: str, target: str, *more: str) -> str:
    options = " ".join(("--reason '…'", *more))
    what = shlex.join((kind, target))
    return (
        f"`stockgate repair {options} -- {what}`" if target.startswith("-") else f"`stockgate repair {what} {options}`"
    )


# --- both -------------------------------------------------------------------------------------------------------------


def undetermined(missing: Sequence[str], known: str) -> Finding:
    """A store is away: `known` says what the other one has."""
    away = " and ".join({"redis": "Redis", "mysql": "MySQL"}[store] for store in missing)
    verb = "does" if len(missing) == 1 else "do"
    return Finding(
        ExplainedClass.UNDETERMINED,
        False,
        f"{away} {verb} not answer, so nothing was compared. {known}",
        f"Bring {away} back and ask again; GET /health/ready of a gateway says what else is missing.",
    )


def decided_by_mysql(epoch: int) -> Finding:
    """The shard is in db mode."""
    return Finding(
        ExplainedClass.DECIDED_BY_MYSQL,
        True,
        f"The shard is in db mode, epoch {epoch}: MySQL decides, and the number is MySQL's. Redis takes no part.",
        "Nothing to do. `stockgate mode` says why the shard is in db mode; `stockgate mode hot --reason …` gives it back to Redis.",
    )


def closed(mode: str, epoch: int, reason: str, *, headless: bool) -> Finding:
    """Nobody decides about the shard now."""
    why = f" The rebuild was asked for: {reason}." if reason else ""
    if headless:
        sentence = (
            f"MySQL names epoch {epoch} as the one that decides, but Redis has nothing of it: Redis was emptied, or the epoch "
            f"is just being replaced. Nothing acknowledged is lost; the number is MySQL's, and callers hear 503.{why}"
        )
    else:
        sentence = (
            f"The shard is {mode}, between two epochs: nobody decides now, callers hear 503 and may repeat. The number is "
            f"MySQL's, and nothing acknowledged is lost.{why}"
        )
    return Finding(
        ExplainedClass.CLOSED,
        False,
        sentence,
        "Ask again in some seconds: a leader opens the next epoch by itself. If it does not, `stockgate status` says whether "
        "there is a leader, a worker on the queue, and what the queue still holds.",
    )


def stopped(alarm: str, detail: str) -> Finding:
    """The worker has stopped the shard with an alarm."""
    return Finding(
        ExplainedClass.STOPPED,
        False,
        f"The persist worker has stopped this shard ({alarm}: {detail}). What Redis decides is kept in the queue, and MySQL "
        "stands still until the cause is mended.",
        "Read the worker's log from where the alarm began, mend the cause, and watch applied_m grow in `stockgate status`.",
    )


def stale(count: int, names: Sequence[str], what: str) -> Finding:
    """Entries of closed epochs name this and had no effect."""
    whom = ", ".join(names)
    return Finding(
        ExplainedClass.STALE,
        True,
        f"{_count(count, 'change')} of a closed epoch, naming this {what}, never took effect ({whom}). With ack=broker nobody "
        "was told otherwise; with ack=redis somebody may have been.",
        "The number is right without it. Where ack=redis is in use, look whether what it names exists now, and tell whom it "
        "concerns if it does not.",
    )


def contradiction(what: str, count: int, first: str) -> Finding:
    """MySQL's own rows do not agree."""
    return Finding(
        ExplainedClass.CONTRADICTION,
        False,
        f"MySQL contradicts itself about this {what} in {_count(count, 'place')}: {first}. No process of ours writes this, so "
        "somebody has changed rows by hand, or a restored backup is not whole.",
        f"Trust neither number. Run {command('audit')} to see how far it reaches, and restore the rows from a backup "
        "before anything is repaired: a repair takes MySQL for the truth.",
    )


# --- a key ------------------------------------------------------------------------------------------------------------


def healthy_key(shown: Amounts, seq: int) -> Finding:
    """Both stores have the same changes and the same numbers."""
    return Finding(
        ExplainedClass.HEALTHY,
        True,
        f"The number is right: both stores have counted the same {_count(seq, 'change')} and agree on {numbers(shown)}.",
        f"{NOTHING_TO_DO} Whoever expects another number finds in the timeline who moved it, when and why.",
    )


def cold_key(shown: Amounts, epoch: int) -> Finding:
    """Redis has not loaded the key."""
    return Finding(
        ExplainedClass.COLD,
        True,
        f"The number is right: nobody has asked for this key in epoch {epoch}, so Redis has not loaded it, and MySQL has "
        f"{numbers(shown)}.",
        f"{NOTHING_TO_DO} The first order loads it.",
    )


def in_flight_key(key: str, shown: Amounts, behind: int, where: str) -> Finding:
    """Redis is ahead of MySQL; `where` says where the changes wait."""
    return Finding(
        ExplainedClass.IN_FLIGHT,
        True,
        f"Redis' number is the right one, {numbers(shown)}: it is {_count(behind, 'change')} ahead of MySQL, on the way "
        f"there ({where}).",
        f"Usually nothing: run {_explain(key)} again in a second. If MySQL's seq does not grow, "
        "`stockgate status` says whether the leader publishes and the worker applies.",
    )


def drifted_key(key: str, redis: Amounts, mysql: Amounts, seq: int) -> Finding:
    """Both have counted the same changes and disagree."""
    return Finding(
        ExplainedClass.DRIFTED,
        False,
        f"Both stores have counted the same {_count(seq, 'change')}, yet Redis says {numbers(redis)} and MySQL {numbers(mysql)}. The "
        "ledger proves MySQL's number; until Redis has it too, orders are decided by a wrong one. No process of ours does "
        "this: somebody has written into Redis.",
        f"The reconciler corrects it at its next pass. If it does not run, or to do it now: {_repair('correct', key)}",
    )


def lost_key(key: str, shard: int, mysql: Amounts | None, why: str) -> Finding:
    """Redis has opened the key and does not have it."""
    remembered = f"MySQL remembers {numbers(mysql)}" if mysql else "MySQL has no such key either"
    return Finding(
        ExplainedClass.LOST,
        False,
        f"Redis has lost this key ({why}); {remembered}. Orders for it hear 503 until the shard is rebuilt from MySQL.",
        f"The reconciler asks for the rebuild at its next pass. If it does not run: {_repair('rebuild_shard', str(shard))}",
    )


def held_key(key: str, parked: int, more: bool, reason: str) -> Finding:
    """Events of the key are parked."""
    count = f"more than {parked} events are" if more else f"{parked} events are" if parked != 1 else "1 event is"
    return Finding(
        ExplainedClass.HELD,
        False,
        f"An event of this key could not be written to MySQL ({reason}), so {count} parked and nobody may sell "
        "the key: orders for it hear KEY_FROZEN. Redis' number counts the parked events, MySQL's does not.",
        f"Mend what the reason names, then look with {_repair('replay_held', key, '--dry-run')} and do it without "
        f"--dry-run. If the first event can never be applied, give it up with {_repair('reject_held', key)}: it names the "
        "order that is hurt, and the shard is rebuilt.",
    )


def rejected_key(key: str, shard: int, mysql: Amounts) -> Finding:
    """An event was rejected; Redis' number is wrong until the epoch ends."""
    return Finding(
        ExplainedClass.REJECTED,
        False,
        f"An operator has rejected an event of this key. MySQL's number is the right one ({numbers(mysql)}); Redis still "
        "counts what was rejected, so the key is not sold until the shard is rebuilt, which was asked for with it.",
        f"Wait until the epoch has changed and run {_explain(key)} again. If it does not change: "
        f"{_repair('rebuild_shard', str(shard))}",
    )


# --- an order ---------------------------------------------------------------------------------------------------------


def healthy_order(status: str) -> Finding:
    """Both stores say the same of every line."""
    return Finding(
        ExplainedClass.HEALTHY, True, f"The order is {status}: both stores say the same of every line.", NOTHING_TO_DO
    )


def cold_order(status: str) -> Finding:
    """The order's record has left Redis, or never was in this epoch."""
    return Finding(
        ExplainedClass.COLD,
        True,
        f"The order is {status}: MySQL has it whole, and Redis has no record of it in this epoch, because it has left or "
        "nobody has asked for it.",
        f"{NOTHING_TO_DO} The next call about it loads it.",
    )


def in_flight_order(status: str, where: str) -> Finding:
    """Redis has decided something about the order that MySQL does not have."""
    return Finding(
        ExplainedClass.IN_FLIGHT,
        True,
        f"The order is {status}, as Redis says: its last change is on its way to MySQL ({where}).",
        "Usually nothing: ask again in a second. If it stays so, `stockgate status` says whether the leader publishes and the "
        "worker applies.",
    )


def drifted_order(keys: Sequence[str], shard: int) -> Finding:
    """MySQL has the order's last change, and yet the stores disagree."""
    return Finding(
        ExplainedClass.DRIFTED,
        False,
        f"MySQL has the order's last change, yet Redis says something else of {', '.join(keys)}. The ledger proves MySQL's "
        "answer; callers hear Redis'.",
        f"Redis' records of orders are not corrected one by one: {_repair('rebuild_shard', str(shard))}",
    )


def lost_order(shard: int) -> Finding:
    """Redis' record of the order is damaged."""
    return Finding(
        ExplainedClass.LOST,
        False,
        "Redis' record of this order is gone or damaged, so calls about it hear 503. What was acknowledged is in the log, or in "
        "MySQL.",
        f"Rebuild the shard from MySQL: {_repair('rebuild_shard', str(shard))}",
    )


def held_order(keys: Sequence[str], reason: str) -> Finding:
    """An event of the order is parked, or a key of it is held."""
    said = f": {reason}" if reason else ""
    return Finding(
        ExplainedClass.HELD,
        False,
        f"The order cannot go on, because {', '.join(keys)} {'is' if len(keys) == 1 else 'are'} held for an operator{said}. "
        "Calls about it hear KEY_FROZEN, and nothing of it is lost.",
        f"See why, and what to do, with {_explain(keys[0])}",
    )


def rejected_order(keys: Sequence[str], reason: str) -> Finding:
    """An operator gave up an event of the order."""
    return Finding(
        ExplainedClass.REJECTED,
        False,
        f"The order is hurt: an operator has given up what it did to {', '.join(keys)} ({reason}). That never counted, though "
        "its caller was told that it had; calls about the order may hear 503.",
        "Tell whoever owns the order that these lines are not taken, and let a new order id be used for them. "
        "`stockgate actions` says who rejected it.",
    )


def never_took_effect() -> Finding:
    """Only entries of closed epochs know the order."""
    return Finding(
        ExplainedClass.STALE,
        False,
        "The order exists in an entry of a closed epoch alone, which never took effect. With ack=broker nobody was told "
        "that it was taken; with ack=redis its caller may have been.",
        "Let the caller repeat it with the same id: it is decided anew, by the stock there is now.",
    )


def overdue(due: datetime, seconds: int, *, late: bool) -> Finding:
    """The hold has ended and was not released yet."""
    return Finding(
        ExplainedClass.OVERDUE,
        not late,
        f"Its hold was due at {due:%Y-%m-%d %H:%M:%S} UTC, {seconds} s ago, and is not released yet. Whatever touches the "
        "order applies the expiry first, so it cannot be confirmed any more.",
        "The leader's sweeper should have released it long ago: see in `stockgate status` whether the shard has a leader."
        if late
        else f"{NOTHING_TO_DO} The leader's sweeper releases it within seconds.",
    )
