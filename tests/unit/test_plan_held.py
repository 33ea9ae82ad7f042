"""What replaying and rejecting decide, without a server."""

import msgspec

from inventory.events import Change, Event
from inventory.held import ParkedEvent, decide
from inventory.moves import LineState, Move
from inventory.tables import DRIFTED, BalanceRow, Facts, Tables
from tests.log_builder import LogBuilder
from tests.memory_tables import MemoryTables


def held_tables() -> tuple[LogBuilder, MemoryTables]:
    """Key `a` is held: an order's hold has a wrong after-image."""
    log = LogBuilder()
    log.adjust("a", 10)
    log.entry()
    tables = MemoryTables.for_log(log)
    tables.apply(log.message(1))
    log.reserve("o1", {"a": 3})
    bad = msgspec.structs.replace(log.pending[0].events[0], available=6)
    log.append_payload(msgspec.msgpack.encode([msgspec.structs.replace(log.pending[0], events=[bad])]))
    log.reserve("o2", {"a": 2})
    log.confirm("o2")
    log.entry()
    tables.apply(log.message(2), log.message(3))
    return log, tables


def parked(tables: MemoryTables) -> list[ParkedEvent]:
    return [
        ParkedEvent(row[1], row[2], row[3], row[5], row[6], row[7], row[8], row[9]) for row in tables.parked.values()
    ]


def working_copy(tables: MemoryTables, balance: BalanceRow | None = None) -> Tables:
    return Tables(0, Facts(balances={"a": balance or tables.balances["a"]}))


def test_replay_stops_at_what_still_has_a_fault() -> None:
    _, memory = held_tables()
    copy = working_copy(memory)
    balance = copy.balance("a")
    assert balance
    decision = decide(copy, balance, "a", parked(memory), None)
    assert (decision.done, decision.applied) == (0, 0)
    assert "after-image" in decision.stopped_by
    assert copy.ledger_rows == []


def test_replay_goes_on_when_the_cause_is_mended() -> None:
    log, memory = held_tables()
    rows = parked(memory)
    good = msgspec.msgpack.encode(msgspec.structs.replace(change_of(rows[0]), events=[restored(rows[0])]))
    copy = working_copy(memory)
    balance = copy.balance("a")
    assert balance
    decision = decide(copy, balance, "a", [rows[0]._replace(payload=good), *rows[1:]], None)
    assert (decision.done, decision.applied, decision.stopped_by) == (3, 3, "")
    assert tuple(balance.quantities) == log.keys["a"].quantities
    assert balance.seq == log.keys["a"].seq


def test_reject_gives_one_up_and_applies_the_others_by_their_deltas() -> None:
    log, memory = held_tables()
    copy = working_copy(memory)
    balance = copy.balance("a")
    assert balance
    decision = decide(copy, balance, "a", parked(memory), "cannot be true")
    assert (decision.done, decision.rejected, decision.applied) == (3, 1, 2)
    assert decision.hurt == (("t1", "o1"),)
    # Redis counted the rejected hold of 3: here it is as if it had not been.
    assert tuple(balance.quantities) == (8, 0, 2, 0, 0)
    assert balance.seq == log.keys["a"].seq
    assert balance.held & DRIFTED
    rejected = copy.ledger_rows[0]
    assert rejected[5:8] == (int(Move.REJECTED), "t1", "o1")
    assert rejected[10:15] == (0, 0, 0, 0, 0)
    assert rejected[15:20] == (10, 0, 0, 0, 0)
    assert rejected[-1] == "cannot be true"
    assert [row[2] for row in copy.line_rows] == [1]
    assert copy.line_rows[0][1] == "o2"
    assert copy.line_rows[0][5] == int(LineState.CONFIRMED)


def test_rejecting_a_reserve_stops_at_the_confirm_that_rests_on_it() -> None:
    log, memory = held_tables()
    log.confirm("o1")
    log.entry()
    memory.apply(log.message(4))
    copy = working_copy(memory)
    balance = copy.balance("a")
    assert balance
    decision = decide(copy, balance, "a", parked(memory), "cannot be true")
    assert (decision.done, decision.rejected, decision.applied) == (3, 1, 2)
    assert "no such line" in decision.stopped_by


def test_change_that_cannot_be_decoded_can_only_be_rejected() -> None:
    _, memory = held_tables()
    rows = [parked(memory)[0]._replace(payload=b"\xc1")]
    for reason, done in ((None, 0), ("unreadable", 1)):
        copy = working_copy(memory)
        balance = copy.balance("a")
        assert balance
        decision = decide(copy, balance, "a", rows, reason)
        assert decision.done == done
        assert len(copy.ledger_rows) == done
    assert copy.ledger_rows[0][6:8] == ("t1", "o1")


def change_of(row: ParkedEvent) -> Change:
    return msgspec.msgpack.decode(row.payload, type=Change)


def restored(row: ParkedEvent) -> Event:
    return msgspec.structs.replace(change_of(row).events[0], available=7)
