"""What one batch does to the tables: every rule of an event, and what a held key does to others."""

import msgspec
import pytest

from inventory.events import Change
from inventory.moves import MOVES, ORDER_MOVES, LineState, Move
from inventory.plan import BEHIND
from inventory.tables import DRIFTED, HELD
from kernel import limits
from tests.log_builder import LogBuilder, random_log
from tests.memory_tables import MemoryTables


@pytest.fixture
def log() -> LogBuilder:
    """Two keys with stock, in entry 1."""
    log = LogBuilder()
    log.adjust("a", 10)
    log.adjust("b", 10)
    log.entry()
    return log


def applied(log: LogBuilder) -> MemoryTables:
    tables = MemoryTables.for_log(log)
    tables.apply(*log.messages())
    return tables


def damaged(log: LogBuilder, **changes: object) -> None:
    """Seal the pending change as an entry with its first event altered."""
    change = log.pending[0]
    event = msgspec.structs.replace(change.events[0], **changes)
    payload = [msgspec.structs.replace(change, events=[event, *change.events[1:]]), *log.pending[1:]]
    log.append_payload(msgspec.msgpack.encode(payload))


def test_a_long_log_leaves_exactly_what_redis_has() -> None:
    log = random_log(3)
    tables = applied(log)
    assert {key: row[:7] for key, row in tables.balances.items()} == {
        name: (*key.quantities, key.seq, key.version) for name, key in log.keys.items()
    }
    for order in log.orders.values():
        for place, line in enumerate(order.lines, 1):
            row = tables.lines[order.tenant, order.order_id, place]
            assert row[3:6] == (line.inventory_key, line.qty, int(line.state))
        header = tables.orders[order.tenant, order.order_id]
        assert header[6] == sum(line.state is LineState.RESERVED for line in order.lines)
        assert header[7] == order.due_ms
    assert len(tables.ledger) == sum(key.seq for key in log.keys.values())
    assert not tables.parked
    assert tables.row.applied_m == log.head_m


def test_ledger_row_says_what_the_event_said(log: LogBuilder) -> None:
    change = log.reserve("o1", {"a": 3})
    log.entry()
    row = applied(log).ledger["a", 2]
    event = change.events[0]
    assert row[2:10] == (0, 1, 2, int(Move.RESERVE), "t1", "o1", int(LineState.RESERVED), 3)
    assert row[10:15] == (-3, 3, 0, 0, 0)
    assert row[15:21] == (7, 3, 0, 0, 0, event.version)
    assert row[21:] == (change.due_ms, change.at_ms, change.trace_id, change.actor, change.reason)


def test_operators_change_remembers_its_request_number(log: LogBuilder) -> None:
    log.lock("a", 4, "lock-1")
    log.entry()
    tables = applied(log)
    assert tables.requests["t1", "lock-1"][2:4] == ("a", int(Move.LOCK))
    assert tables.balances["a"].version == 2


@pytest.mark.parametrize("state", [s for s in LineState if s is not LineState.NONE])
@pytest.mark.parametrize("kind", sorted(ORDER_MOVES))
def test_moves_are_those_of_the_table(log: LogBuilder, kind: Move, state: LineState) -> None:
    """An event of every move upon a line in every state: applied where the table has it, else its key is held."""
    paths = {
        LineState.RESERVED: [],
        LineState.CONFIRMED: [Move.CONFIRM],
        LineState.RELEASED: [Move.RELEASE],
        LineState.CONSUMED: [Move.CONFIRM, Move.CONSUME],
        LineState.RETURNED: [Move.CONFIRM, Move.RETURN],
    }
    # Quantities of another order make every delta possible, so that the line's state alone decides.
    log.reserve("other", {"a": 5})
    log.reserve("sold", {"a": 3})
    log.confirm("sold")
    log.reserve("o1", {"a": 1})
    for move in paths[state]:
        log.move("o1", move)
    log.entry()
    tables = applied(log)
    before = tables.lines["t1", "o1", 1]
    log.orders["o1"].lines[0].state = MOVES[kind].source
    log.move("o1", kind, [0])
    log.entry()
    planned = tables.apply(log.message(3))
    if MOVES[kind].source is state:
        assert not tables.parked
        assert tables.lines["t1", "o1", 1][5] == int(MOVES[kind].target)
    else:
        assert [key for key, _ in planned.newly_held] == ["a"]
        assert tables.lines["t1", "o1", 1] == before
        assert tables.row.applied_m == 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seq": 7}, "seq 7 after 1"),
        ({"seq": 1}, "seq 1 after 1"),
        ({"version": 5}, "inventory_version 5 after 1"),
        ({"state": 2}, "leads to state 1"),
        ({"qty": 2}, "deltas"),
        ({"qty": 0, "d_available": 0, "d_reserved": 0}, "quantity 0"),
        ({"qty": -1, "d_available": 1, "d_reserved": -1}, "quantity -1"),
        ({"d_sold": 1}, "deltas"),
        ({"available": 6}, "after-image"),
        ({"locked": 1}, "after-image"),
        ({"qty": 11, "d_available": -11, "d_reserved": 11, "available": -1, "reserved": 11}, "negative"),
        ({"position": 2}, "line 2 of 1"),
        ({"position": 0}, "line 0 of 1"),
        ({"inventory_key": "nobody"}, "no balance"),
    ],
)
def test_event_with_a_fault_holds_its_key(log: LogBuilder, change: dict[str, object], why: str) -> None:
    log.reserve("o1", {"a": 3})
    damaged(log, **change)
    log.reserve("o2", {"b": 1})
    log.entry()
    tables = applied(log)
    key = str(change.get("inventory_key", "a"))
    assert tables.balances[key].held == HELD
    (parked,) = tables.parked.values()
    assert parked[:4] == (key, 1, 2, 0)
    assert parked[6:8] == ("t1", "o1")
    assert why in parked[9]
    assert tables.row.held_version == 1
    assert tables.row.applied_m == 3
    # Nothing of it had an effect; the other key went on.
    assert ("t1", "o1") not in tables.orders
    assert tables.balances["a"].seq == 1
    assert tables.quantities("b") == (9, 1, 0, 0, 0)


def test_request_number_used_twice_holds_the_key(log: LogBuilder) -> None:
    log.adjust("a", 1, "r1")
    log.adjust("b", 1, "r1")
    log.entry()
    tables = applied(log)
    assert tables.balances["a"].held == 0
    assert "request number" in tables.parked["b", 1, 2, 1][9]


def test_order_reserved_twice_holds_the_key(log: LogBuilder) -> None:
    log.reserve("o1", {"a": 1})
    log.reserve("o1", {"b": 1})
    log.entry()
    tables = applied(log)
    assert tables.balances["a"].held == 0
    assert "exists already" in tables.parked["b", 1, 2, 1][9] or "has a line" in tables.parked["b", 1, 2, 1][9]


def test_line_of_another_key_or_quantity_holds_the_key(log: LogBuilder) -> None:
    log.reserve("o1", {"a": 2})
    log.reserve("o2", {"b": 2})
    log.entry()
    tables = applied(log)
    log.confirm("o1")
    log.pending[0] = msgspec.structs.replace(log.pending[0], ref="o2")
    log.entry()
    tables.apply(log.message(3))
    assert "line 1 is 2 of b" in tables.parked["a", 1, 3, 0][9]


def test_later_events_of_a_held_key_are_parked_in_order_and_all_else_goes_on(log: LogBuilder) -> None:
    log.reserve("bad", {"a": 3})
    damaged(log, available=5)
    log.keys["a"].available, log.keys["a"].reserved = 7, 3
    log.reserve("both", {"a": 1, "b": 2})
    log.confirm("both")
    log.entry()
    log.adjust("a", 5)
    log.entry()
    tables = applied(log)
    assert list(tables.parked) == [("a", 1, 2, 0), ("a", 1, 3, 0), ("a", 1, 3, 1), ("a", 1, 4, 0)]
    assert [row[9] for row in tables.parked.values()][1:] == [BEHIND] * 3
    assert [row[5] for row in tables.parked.values()] == [2, 3, 4, 5]
    # The other line of the order is confirmed; the header counts the lines that are there.
    assert tables.lines["t1", "both", 2][5] == int(LineState.CONFIRMED)
    assert ("t1", "both", 1) not in tables.lines
    assert tables.orders["t1", "both"][5:7] == (2, 0)
    # A parked change keeps only the events of its key.
    payload = msgspec.msgpack.decode(tables.parked["a", 1, 3, 0][8], type=Change)
    assert [event.inventory_key for event in payload.events] == ["a"]
    assert tables.row.held_version == 1


def test_event_proven_refused_by_the_server_is_parked(log: LogBuilder) -> None:
    log.reserve("o1", {"a": 1})
    log.entry()
    tables = MemoryTables.for_log(log)
    tables.apply(*log.messages(), proven={(2, 0, "a"): "refused by the database: 1062"})
    assert "1062" in tables.parked["a", 1, 2, 0][9]


def test_change_that_cannot_be_decoded_holds_its_keys_only(log: LogBuilder) -> None:
    log.reserve("o1", {"b": 1})
    good = msgspec.to_builtins(log.pending[0])
    log.pending = []
    unknown = [99, "t1", "o9", *good[3:13], [["a", 2, "not a number"]]]
    log.append_payload(msgspec.msgpack.encode([unknown, good]))
    tables = applied(log)
    assert tables.balances["a"].held == HELD
    assert tables.parked["a", 1, 2, 0][6:8] == ("t1", "o9")
    assert "cannot be decoded" in tables.parked["a", 1, 2, 0][9]
    assert tables.quantities("b") == (9, 1, 0, 0, 0)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc1",
        b"\x01",
        b"\x90",
        msgspec.msgpack.encode([[1, 2]]),
        msgspec.msgpack.encode([[1, "t", "o", [["k" * 129]]]]),
    ],
)
def test_entry_whose_keys_cannot_be_named_stops_the_shard(log: LogBuilder, payload: bytes) -> None:
    log.append_payload(payload)
    tables = applied(log)
    assert tables.row.alarm == "UNDECODABLE_ENTRY"
    assert tables.row.applied_m == 1


def test_key_that_no_column_can_hold_stops_the_shard(log: LogBuilder) -> None:
    log.reserve("o1", {"a": 1})
    damaged(log, inventory_key="k" * 129)
    tables = applied(log)
    assert tables.row.alarm == "UNDECODABLE_ENTRY"
    assert tables.row.applied_m == 1


def test_too_many_parked_events_stop_the_shard(log: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WORKER_PARKED_EVENTS_MAX", 2)
    log.reserve("bad", {"a": 1})
    damaged(log, seq=9)
    for number in range(3):
        log.reserve(f"o{number}", {"a": 1})
        log.entry()
    tables = applied(log)
    assert tables.row.alarm == "PARKED_FULL"
    assert len(tables.parked) == 2
    assert tables.row.applied_m == 3


def test_drifted_key_takes_events_by_their_deltas(log: LogBuilder) -> None:
    log.reserve("o1", {"a": 3})
    log.entry()
    tables = MemoryTables.for_log(log)
    tables.apply(log.message(1))
    tables.balances["a"] = tables.balances["a"]._replace(available=12, seq=5, version=3, held=DRIFTED)
    tables.apply(log.message(2))
    assert tables.balances["a"][:8] == (9, 3, 0, 0, 0, 6, 3, DRIFTED)
    assert ("a", 6) in tables.ledger
    assert not tables.parked
