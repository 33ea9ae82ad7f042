"""The pure parts of a leader: following the chain, packing messages, deciding to send again, naming old epochs."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.events import chain, genesis
from inventory.expiry import expiries, order_of_member
from inventory.head import ChainBroken, Position
from inventory.leftovers import epoch_of
from inventory.relay import Entry, follow, pack
from inventory.resend import PAUSE_MAX_S, STANDSTILL_S, Resend
from kernel import limits
from kernel.redis_keys import EpochKeys, register

START = Position(0, genesis(0, 1))


def log(*payloads: bytes, after: Position = START) -> list[tuple[int, dict[bytes, bytes]]]:
    """A log as it is read."""
    read: list[tuple[int, dict[bytes, bytes]]] = []
    m, digest = after
    for payload in payloads:
        m, digest = m + 1, chain(digest, payload)
        read.append((m, {b"d": digest.encode(), b"e": payload, b"b": b"0"}))
    return read


def test_a_log_that_chains_is_followed() -> None:
    read = log(b"a", b"b", b"c")
    entries = follow(START, read)
    assert [(entry.m, entry.payload) for entry in entries] == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert follow(Position(1, entries[0].digest), read[1:]) == entries[1:]
    assert follow(START, []) == []


@pytest.mark.parametrize(
    "read",
    [
        log(b"a", b"b")[1:],
        [log(b"a")[0], log(b"a", b"b", b"c")[2]],
        log(b"a", after=Position(0, genesis(0, 2))),
        [(1, {**log(b"a")[0][1], b"e": b"changed"})],
    ],
    ids=["hole before", "hole within", "another epoch", "another payload"],
)
def test_anything_else_is_not_the_continuation(read: list[tuple[int, dict[bytes, bytes]]]) -> None:
    with pytest.raises(ChainBroken):
        follow(START, read)


@given(st.lists(st.integers(0, 3 * limits.RELAY_MESSAGE_BYTES_MAX // 2), max_size=30))
def test_messages_hold_all_entries_in_order_and_within_the_bound(sizes: list[int]) -> None:
    payload = memoryview(bytes(3 * limits.RELAY_MESSAGE_BYTES_MAX // 2))
    entries = [Entry(m, "", payload[:size]) for m, size in enumerate(sizes, 1)]  # pyright: ignore[reportArgumentType]
    messages = pack(entries)
    assert [entry for message in messages for entry in message] == entries
    for message in messages:
        assert len(message) == 1 or sum(len(entry.payload) for entry in message) <= limits.RELAY_MESSAGE_BYTES_MAX
    assert all(messages)


def test_a_worker_that_misses_an_entry_is_served_at_once_and_then_in_growing_pauses() -> None:
    resend = Resend()
    assert not resend.wanted(0.0, 5, 0)
    assert resend.wanted(0.5, 5, 6)
    resend.sent(0.5)
    sent: list[float] = []
    for half_seconds in range(2, 300):
        now = half_seconds / 2
        if resend.wanted(now, 5, 6):
            resend.sent(now)
            sent.append(now)
    pauses = [later - earlier for earlier, later in pairwise(sent)]
    assert pauses == sorted(pauses)
    assert max(pauses) == PAUSE_MAX_S
    # Something moved: the next hole is served at once again.
    assert resend.wanted(200.0, 9, 10)


def test_a_wish_that_is_fulfilled_is_none() -> None:
    assert not Resend().wanted(0.0, 6, 6)


def test_a_standstill_is_one_only_after_a_while_and_below_what_is_confirmed() -> None:
    resend = Resend()
    resend.wanted(10.0, 5, 0)
    assert not resend.stalled(10.0 + STANDSTILL_S / 2, 9)
    assert resend.stalled(10.0 + STANDSTILL_S, 9)
    assert not resend.stalled(10.0 + STANDSTILL_S, 5)
    resend.wanted(13.0, 6, 0)
    assert not resend.stalled(13.5, 9)


def test_names_tell_their_epoch() -> None:
    keys = EpochKeys(0, 12)
    for name in (keys.head, keys.log, keys.due, keys.balance("a:b@{sg:0}:3:c"), keys.order("shop", "7:8")):
        assert epoch_of(name, 0) == 12
    assert epoch_of(register(0), 0) is None
    assert epoch_of(EpochKeys(1, 12).head, 0) is None
    assert epoch_of("something:3:else", 0) is None


def test_members_of_the_due_set_name_their_order() -> None:
    assert order_of_member(b"o:shop/a/b:c") == ("shop", "a/b:c")
    assert [(op.tenant, op.ref, op.group) for op in expiries([("s", "a"), ("s", "b")])] == [
        ("s", "a", 0),
        ("s", "b", 1),
    ]
