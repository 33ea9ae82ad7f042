"""Which messages count: terms, epochs, duplicates, gaps, forks, CLOSE."""

import msgspec
import pytest

from inventory.events import WIRE_VERSION, LogMessage, MessageType, encode_message, genesis
from inventory.sequence import GAP_ALARM_MS, Verdict
from kernel import limits
from tests.log_builder import LogBuilder, random_log
from tests.memory_tables import MemoryTables, hot_row


def small_log(entries: int = 6) -> LogBuilder:
    log = LogBuilder()
    for _ in range(entries):
        log.adjust("a", 5)
        log.entry()
    return log


@pytest.fixture
def log() -> LogBuilder:
    return small_log()


@pytest.fixture
def tables(log: LogBuilder) -> MemoryTables:
    return MemoryTables.for_log(log)


def test_entries_are_applied_in_order_and_once(log: LogBuilder, tables: MemoryTables) -> None:
    tables.apply(log.message(1, 3))
    planned = tables.apply(log.message(2, 5), log.message(1), log.message(4, 6))
    assert planned.duplicates == 2 + 1 + 2
    assert planned.verdicts == [Verdict.DONE] * 3
    assert tables.row.applied_m == 6
    assert tables.row.applied_digest == log.digest
    assert tables.quantities("a")[0] == 30


def test_message_of_an_older_term_is_skipped_and_not_listed(log: LogBuilder, tables: MemoryTables) -> None:
    tables.row = tables.row._replace(term=2)
    planned = tables.apply(
        log.message(1), log.term_message(2), log.message(2), log.close_message(1), log.message(2, term=2)
    )
    assert planned.skipped_term == 2
    assert not tables.stale
    assert (tables.row.applied_term, tables.row.applied_m, tables.row.mode) == (2, 2, "hot")


def test_term_repeated_or_older_is_done(tables: MemoryTables, log: LogBuilder) -> None:
    tables.row = tables.row._replace(term=5, applied_term=3)
    planned = tables.apply(log.term_message(3), log.term_message(2), log.term_message(4))
    assert planned.verdicts == [Verdict.DONE] * 3
    assert tables.row.applied_term == 4


@pytest.mark.parametrize("what", ["term", "entries", "close"])
def test_term_that_nobody_drew_or_announced_stops_the_shard(log: LogBuilder, tables: MemoryTables, what: str) -> None:
    ahead = {
        "term": log.term_message(2),
        "entries": log.message(1, term=2),
        "close": log.close_message(0, term=2),
    }[what]
    planned = tables.apply(ahead, log.message(1))
    assert tables.row.alarm == "TERM_AHEAD"
    assert planned.verdicts == [Verdict.PENDING] * 2
    assert tables.row.applied_m == 0


def test_term_drops_what_waited_for_the_old_leader(log: LogBuilder, tables: MemoryTables) -> None:
    tables.row = tables.row._replace(term=2)
    tables.apply(log.message(1), log.message(3))
    assert tables.row.wanted_m == 2
    planned = tables.apply(log.term_message(2))
    assert planned.verdicts == [Verdict.DONE] * 2
    assert tables.row.wanted_m == 0
    assert not tables.held


def test_gap_is_wanted_and_filled(log: LogBuilder, tables: MemoryTables) -> None:
    planned = tables.apply(log.message(1), log.message(3), log.message(5, 6))
    assert planned.verdicts == [Verdict.DONE, Verdict.HELD, Verdict.HELD]
    assert (tables.row.applied_m, tables.row.wanted_m) == (1, 2)
    planned = tables.apply(log.message(2))
    assert planned.verdicts == [Verdict.DONE, Verdict.HELD, Verdict.DONE]
    assert (tables.row.applied_m, tables.row.wanted_m) == (3, 4)
    tables.apply(log.message(4))
    assert (tables.row.applied_m, tables.row.wanted_m) == (6, 0)
    assert not tables.held


def test_gap_that_stays_is_an_alarm_and_never_a_skip(log: LogBuilder, tables: MemoryTables) -> None:
    tables.apply(log.message(2))
    tables.now_ms += GAP_ALARM_MS - 1
    assert tables.apply().shard.alarm == ""
    tables.now_ms += 1
    assert tables.apply().shard.alarm == "GAP"
    assert tables.row.applied_m == 0
    planned = tables.apply(log.message(1))
    assert not planned.stopped
    assert (tables.row.applied_m, tables.row.wanted_m, tables.row.alarm) == (2, 0, "")


def test_only_sixteen_messages_are_held_and_the_rest_is_wanted_again() -> None:
    log = small_log(40)
    tables = MemoryTables.for_log(log)
    planned = tables.apply(*(log.message(m) for m in range(2, 41)))
    assert len(tables.held) == limits.WORKER_HELD_MESSAGES_MAX
    assert planned.dropped == 39 - limits.WORKER_HELD_MESSAGES_MAX
    tables.apply(log.message(1))
    # It remembers that more had come than it kept.
    assert (tables.row.applied_m, tables.row.wanted_m) == (17, 18)
    tables.apply(*(log.message(m) for m in range(18, 41)))
    assert (tables.row.applied_m, tables.row.wanted_m) == (40, 0)


def test_wanted_of_another_worker_stays_until_it_came(log: LogBuilder, tables: MemoryTables) -> None:
    tables.row = tables.row._replace(wanted_m=3)
    assert tables.apply(log.message(1)).shard.wanted_m == 3
    assert tables.apply(log.message(2)).shard.wanted_m == 3
    assert tables.apply(log.message(3)).shard.wanted_m == 0


def test_same_number_with_another_digest_stops_the_shard(log: LogBuilder, tables: MemoryTables) -> None:
    tables.apply(log.message(1, 2))
    fork = small_log(1)
    fork.adjust("a", 9)
    fork.entry()
    planned = tables.apply(fork.message(2), log.message(3))
    assert tables.row.alarm == "FORK"
    assert planned.verdicts == [Verdict.PENDING] * 2
    assert tables.row.applied_m == 2


def test_entry_that_does_not_continue_stops_the_shard_after_what_does(log: LogBuilder, tables: MemoryTables) -> None:
    fork = small_log(2)
    fork.adjust("a", 9)
    fork.entry()
    fork.adjust("a", 9)
    fork.entry()
    planned = tables.apply(log.message(1), log.message(2, 3), fork.message(4), log.message(4))
    assert tables.row.alarm == "CHAIN_BREAK"
    assert planned.verdicts == [Verdict.DONE, Verdict.DONE, Verdict.PENDING, Verdict.PENDING]
    assert tables.row.applied_m == 3
    # The operator takes the foreign message out of the queue: it goes on, and takes its alarm back.
    tables.apply(log.message(4))
    assert (tables.row.applied_m, tables.row.alarm, tables.row.alarm_detail) == (4, "", "")


def test_payload_that_is_not_what_its_digest_says_stops_the_shard(log: LogBuilder, tables: MemoryTables) -> None:
    log.entries[0] = (log.entries[0][0], log.entries[1][1])
    tables.apply(log.message(1))
    assert tables.row.alarm == "CHAIN_BREAK"


def test_newer_epoch_stops_the_shard(log: LogBuilder, tables: MemoryTables) -> None:
    tables.apply(*log.messages())
    log.open_next_epoch()
    log.adjust("a", 1)
    log.entry()
    assert tables.apply(log.message(1)).stopped
    assert tables.row.alarm == "EPOCH_AHEAD"


def test_wire_version_of_the_future_stops_the_shard(tables: MemoryTables) -> None:
    planned = tables.apply(msgspec.msgpack.encode([WIRE_VERSION + 1, "anything"]))
    assert tables.row.alarm == "UNKNOWN_VERSION"
    assert planned.verdicts == [Verdict.PENDING]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1 not msgpack",
        b"\x93\x01\x01",
        encode_message(LogMessage(WIRE_VERSION, MessageType.TERM, 7, 1, 1)),
        encode_message(LogMessage(WIRE_VERSION, MessageType.ENTRIES, 0, 1, 1, 1, [])),
        encode_message(LogMessage(WIRE_VERSION, MessageType.CLOSE, 0, 1, 1, after_m=0, next_mode="cold")),
    ],
)
def test_message_that_is_none_is_listed_and_dropped(log: LogBuilder, tables: MemoryTables, body: bytes) -> None:
    planned = tables.apply(body, log.message(1), body)
    assert planned.verdicts == [Verdict.DONE] * 3
    assert len(planned.stale) == 1
    assert tables.apply(body).stale == []
    assert (tables.row.applied_m, tables.row.alarm) == (1, "")


def test_close_is_obeyed_when_all_before_it_is_applied(log: LogBuilder, tables: MemoryTables) -> None:
    planned = tables.apply(log.message(1, 4), log.close_message(6, "db"))
    assert planned.verdicts == [Verdict.DONE, Verdict.HELD]
    assert (tables.row.mode, tables.row.wanted_m) == ("hot", 5)
    planned = tables.apply(log.message(5, 6))
    assert planned.closed
    assert (tables.row.mode, tables.row.epoch, tables.row.wanted_m) == ("db", 2, 0)
    assert tables.row.since_ms == tables.now_ms
    assert not tables.held


def test_mode_db_is_an_epoch_of_its_own(log: LogBuilder, tables: MemoryTables) -> None:
    tables.row = tables.row._replace(rebuild_wanted=1, rebuild_reason="b is lost")
    planned = tables.apply(*log.messages(), log.close_message(6, "db"))
    row = tables.row
    assert (row.mode, row.epoch, row.applied_m, row.applied_digest) == ("db", 2, 0, genesis(0, 2))
    assert (row.wanted_m, row.rebuild_wanted, row.rebuild_reason) == (0, 0, "")
    # What was taken is of the closed epoch.
    assert {(row[3], row[4]) for row in planned.tables.ledger_rows} == {(1, m) for m in range(1, 7)}
    assert tables.quantities("a")[0] == 30


def test_close_for_opening_leaves_the_row_in_its_epoch(log: LogBuilder, tables: MemoryTables) -> None:
    tables.row = tables.row._replace(rebuild_wanted=1, rebuild_reason="b is lost")
    tables.apply(*log.messages(), log.close_message(6, "opening"))
    row = tables.row
    assert (row.mode, row.epoch, row.applied_m, row.applied_digest) == ("opening", 1, 6, log.digest)
    assert row.rebuild_wanted == 1


def test_what_is_repeated_behind_a_close_for_db_is_no_stale_entry(log: LogBuilder, tables: MemoryTables) -> None:
    """In the very transaction that closes, before its ledger rows can be read, and in later ones."""
    planned = tables.apply(log.message(1, 3), log.close_message(3, "db"), log.message(2, 4), log.close_message(3, "db"))
    assert planned.verdicts == [Verdict.DONE] * 4
    assert planned.duplicates == 2
    assert [(entry.epoch, entry.m) for entry in planned.stale] == [(1, 4)]
    again = tables.apply(log.message(1, 5), log.close_message(5))
    assert [(entry.epoch, entry.m) for entry in again.stale] == [(1, 5)]
    assert (tables.row.mode, tables.row.epoch, tables.row.applied_m) == ("db", 2, 0)
    assert tables.quantities("a")[0] == 15


def test_a_term_begins_in_mode_db(log: LogBuilder, tables: MemoryTables) -> None:
    tables.apply(log.message(1, 3), log.close_message(3, "db"))
    tables.row = tables.row._replace(term=2)
    planned = tables.apply(log.term_message(2), log.message(1, 3))
    assert (tables.row.mode, tables.row.epoch, tables.row.applied_term) == ("db", 2, 2)
    assert planned.skipped_term == 1
    assert not planned.stopped


def test_redis_goes_on_in_an_epoch_above_that_of_mode_db(log: LogBuilder, tables: MemoryTables) -> None:
    tables.apply(*log.messages(), log.close_message(6, "db"))
    tables.row = tables.row._replace(mode="hot", epoch=3, applied_m=0, applied_digest=genesis(0, 3))
    log.open_next_epoch()
    log.open_next_epoch()
    log.adjust("a", 1)
    log.entry()
    tables.apply(log.message(1))
    assert tables.quantities("a")[0] == 31
    assert (tables.row.epoch, tables.row.applied_m) == (3, 1)


def test_entries_after_close_are_listed_once_and_have_no_effect(log: LogBuilder, tables: MemoryTables) -> None:
    planned = tables.apply(log.message(1, 3), log.close_message(3), log.message(2, 5))
    assert planned.closed
    assert [(entry.epoch, entry.m) for entry in planned.stale] == [(1, 4), (1, 5)]
    assert (tables.row.mode, tables.row.applied_m) == ("opening", 3)
    again = tables.apply(log.message(2, 6), log.close_message(6))
    assert [entry.m for entry in again.stale] == [6]
    assert tables.quantities("a")[0] == 15


def test_what_waited_behind_a_gap_is_listed_when_the_epoch_closes(log: LogBuilder, tables: MemoryTables) -> None:
    tables.apply(log.message(1), log.message(3))
    planned = tables.apply(log.close_message(1))
    assert [entry.m for entry in planned.stale] == [3]
    assert planned.verdicts == [Verdict.DONE] * 2


def test_redelivery_of_a_closed_epoch_is_no_stale_entry(log: LogBuilder, tables: MemoryTables) -> None:
    """The worker dies between COMMIT and acknowledgement, and the next epoch opens before the redelivery."""
    tables.apply(*log.messages(), log.close_message())
    tables.row = tables.row._replace(mode="hot", epoch=2, applied_m=0, applied_digest=genesis(0, 2))
    tables.crash()
    planned = tables.apply(*log.messages(), log.close_message())
    assert planned.stale == []
    assert tables.row.mode == "hot"
    assert tables.quantities("a")[0] == 30


def test_next_epoch_begins_at_its_own_genesis(log: LogBuilder, tables: MemoryTables) -> None:
    tables.apply(*log.messages(), log.close_message())
    tables.row = tables.row._replace(mode="hot", epoch=2, applied_m=0, applied_digest=genesis(0, 2))
    log.open_next_epoch()
    log.adjust("a", 1)
    log.entry()
    tables.apply(log.message(1))
    assert tables.quantities("a")[0] == 31
    assert tables.row.applied_m == 1


def test_nothing_is_applied_while_nobody_decides(log: LogBuilder) -> None:
    tables = MemoryTables.for_log(log, row=hot_row()._replace(mode="opening"))
    planned = tables.apply(log.message(1))
    assert [entry.m for entry in planned.stale] == [1]
    assert tables.row.applied_m == 0


def test_alarms_of_others_stay(log: LogBuilder, tables: MemoryTables) -> None:
    tables.row = tables.row._replace(alarm="CLOCK_SKEW", alarm_detail="x")
    tables.apply(log.message(1))
    assert tables.row.alarm == "CLOCK_SKEW"


def test_row_remembers_when_its_last_change_happened() -> None:
    log = random_log(1, operations=20)
    tables = MemoryTables.for_log(log)
    tables.apply(*log.messages())
    assert tables.row.applied_event_ms == log.now_ms
    assert tables.row.applied_at_ms == tables.now_ms
