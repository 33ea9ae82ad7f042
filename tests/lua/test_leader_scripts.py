"""The leader's scripts: drawing an epoch, taking it over, naming, asking after a fork, trimming, a full server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError, ResponseError

from inventory import events
from inventory.moves import Move
from inventory.outcomes import CallStatus, Outcome
from kernel.redis_keys import confirmed_channel, register
from tests.lua.shard import Shard, order_op, request_op, reserve

OK = CallStatus.DECIDED
NOT_CONTINUATION = 4


@pytest.fixture
def log(shard: Shard) -> list[tuple[int, str]]:
    """Five entries, as (m, digest); entry 0 is the genesis."""
    shard.stock(a=100)
    return [(0, shard.genesis), *[(r.m, r.digest) for r in (shard.call(reserve(f"o{i}", a=1)) for i in range(5))]]


# --- epochs ---


def test_an_epoch_is_drawn_once_fenced_and_empty(shard: Shard) -> None:
    epoch = Shard(shard.client, shard.number, epoch=5)
    assert epoch.draw(grace_ms=7) == 0
    names = epoch.names
    assert epoch.call(reserve("o1", a=1)).status is CallStatus.FENCED
    assert {field: epoch.head(field) for field in ("fence", "term", "m", "confirmed_m", "evicted_m", "grace_ms")} == {
        "fence": 1, "term": 1, "m": 0, "confirmed_m": 0, "evicted_m": 0, "grace_ms": 7,
    }  # fmt: skip
    assert epoch.end() == (0, events.genesis(shard.number, 5))
    assert epoch.head("appended_bytes") == epoch.head("confirmed_bytes") == 0
    assert shard.client.get(register(shard.number)) == b"5"
    for taken in (5, 4, 1):
        assert Shard(shard.client, shard.number, epoch=taken).draw() == 5, "draw above what the register names"
    assert Shard(shard.client, shard.number, epoch=6).draw() == 0
    assert shard.client.exists(names.head) == 1


def test_an_existing_head_is_never_drawn_anew(shard: Shard) -> None:
    shard.client.delete(register(shard.number))
    image = shard.image()
    assert shard.draw() == 1
    assert shard.image() == image
    shard.raise_with(register(shard.number), "garbage")
    with pytest.raises(ResponseError, match="no number"):
        Shard(shard.client, shard.number, epoch=9).draw()


def test_unfencing_names_the_term(shard: Shard) -> None:
    shard.fence(1)
    assert shard.fence(0, term=2) == -3
    assert shard.fence(0) == 0
    assert shard.call(reserve("o1", a=1)).status is OK


def test_a_fence_raises_the_term_and_never_lowers_it(shard: Shard) -> None:
    assert shard.fence(1, term=4) == 0
    assert (shard.head("term"), shard.head("fence")) == (4, 1)
    assert shard.fence(1, term=3) == -3
    assert shard.fence(0, term=1) == -3
    assert shard.head("fence") == 1


# --- the chain ---


def test_taking_over_needs_the_entry_that_mysql_has(shard: Shard, log: list[tuple[int, str]]) -> None:
    end = log[-1]
    for term, (m, digest) in enumerate(log, start=2):
        code, head_m, head_digest, confirmed_m, fence, opened_ms, evicted_m = shard.take_over(term, m, digest)
        assert (code, head_m, head_digest, confirmed_m, fence, evicted_m) == (OK, *end, 0, 0, 0)
        assert opened_ms == shard.head("opened_ms")
        assert shard.head("term") == term
    term = shard.head("term")
    for m, digest in ((3, log[2][1]), (6, log[5][1]), (0, log[1][1]), (5, "")):
        assert shard.take_over(term + 1, m, digest)[0] == NOT_CONTINUATION
    assert shard.head("term") == term
    assert shard.take_over(term - 1, *end)[0] == CallStatus.STALE_TERM
    assert shard.take_over(term, *end)[0] == OK, "the same leader may ask again"


def test_checking_the_chain_raises_nothing_and_wants_its_own_term(shard: Shard, log: list[tuple[int, str]]) -> None:
    assert shard.check_chain(1, *log[4])[:3] == [OK, *log[5]]
    assert shard.check_chain(2, *log[4])[0] == CallStatus.STALE_TERM
    assert shard.check_chain(1, 4, log[3][1])[0] == NOT_CONTINUATION
    shard.client.delete(shard.names.log)
    assert shard.check_chain(1, *log[4])[0] == NOT_CONTINUATION
    shard.client.delete(shard.names.head)
    assert shard.check_chain(1, *log[4]) == [CallStatus.NO_HEAD]


def test_a_shorter_log_that_grew_again_is_no_continuation(shard: Shard, log: list[tuple[int, str]]) -> None:
    """A restart with a lost tail hands out the same numbers again: only the digests tell."""
    lose_tail(shard, log, keep=3)
    again = shard.call(reserve("other", a=2))
    assert again.m == 4
    assert again.digest != log[4][1]
    assert shard.take_over(2, *log[3])[0] == OK
    assert shard.take_over(3, *log[4])[0] == NOT_CONTINUATION
    assert shard.check_chain(2, 4, again.digest)[0] == OK


def lose_tail(shard: Shard, log: list[tuple[int, str]], *, keep: int) -> None:
    """Let entries vanish as after a restart with older data (balances and records do not matter here)."""
    m, digest = log[keep]
    for entry in range(keep + 1, len(log)):
        shard.client.xdel(shard.names.log, f"{entry}-0")
    shard.client.hset(shard.names.head, mapping={"m": m, "digest": digest})
    shard.client.execute_command("XSETID", shard.names.log, f"{m}-0")


# --- confirming ---


def test_the_mark_moves_only_to_the_entry_that_the_leader_published(shard: Shard, log: list[tuple[int, str]]) -> None:
    assert shard.confirm(2, log[3][1]) == -4
    assert shard.confirm(6, log[5][1]) == -4
    assert shard.confirm(3, log[3][1], term=2) == -3
    assert shard.head("confirmed_m") == 0
    with shard.client.pubsub() as channel:
        channel.subscribe(confirmed_channel(shard.number))
        assert channel.get_message(timeout=2)["type"] == "subscribe"
        assert shard.confirm(3, log[3][1], payload=b"three") == 1
        assert channel.get_message(timeout=2)["data"] == b"three"
        assert shard.confirm(3, log[3][1]) == 0
        assert shard.confirm(2, log[2][1]) == 0
        assert channel.get_message(timeout=0.05) is None
    assert shard.head("confirmed_m") == 3
    assert shard.head("confirmed_bytes") == shard.entries()[2][3]
    shard.fence(1)
    assert shard.confirm(5, log[5][1]) == 1, "what is in the log is relayed under a fence too"
    assert shard.head("confirmed_bytes") == shard.head("appended_bytes")


def ask(shard: Shard, m: int, digest: str) -> int:
    return shard.run("ask_confirmed", [shard.names.head, shard.names.log], [m, digest])


def test_an_asker_is_told_of_its_own_entry_only(shard: Shard, log: list[tuple[int, str]]) -> None:
    shard.confirm(3, log[3][1])
    assert [ask(shard, m, digest) for m, digest in log[1:]] == [1, 1, 1, 0, 0]
    assert ask(shard, 2, log[3][1]) == -1
    assert ask(shard, 6, log[5][1]) == -1
    lose_tail(shard, log, keep=3)
    forked = shard.call(reserve("other", a=2))
    shard.confirm(4, forked.digest)
    assert ask(shard, 4, log[4][1]) == -1, "the number was given again to another entry, which is confirmed"
    assert ask(shard, 4, forked.digest) == 1
    assert ask(Shard(shard.client, shard.number, epoch=9), 1, log[1][1]) == -1


# --- trimming ---


def trim(shard: Shard, keep_from_m: int, term: int = 1) -> int:
    return shard.run("trim", [shard.names.head, shard.names.log], [term, keep_from_m])


def test_trimming_keeps_what_is_not_confirmed_and_the_last_that_is(shard: Shard, log: list[tuple[int, str]]) -> None:
    assert trim(shard, 99) == 0
    shard.confirm(3, log[3][1])
    assert trim(shard, 2, term=2) == -3
    assert trim(shard, 2) == 1
    assert [entry[0] for entry in shard.entries()] == [2, 3, 4, 5]
    assert trim(shard, 99) == 1
    assert [entry[0] for entry in shard.entries()] == [3, 4, 5]
    assert shard.check_chain(1, *log[3])[0] == OK
    assert ask(shard, *log[1]) == -1
    assert shard.call(reserve("more", a=1)).m == 6


# --- a full server ---


@pytest.fixture
def full(client: Any) -> Iterator[Callable[[], None]]:
    """Makes the server refuse more memory until the test ends."""
    before = client.config_get("maxmemory")["maxmemory"]
    yield lambda: client.config_set("maxmemory", 1)
    client.config_set("maxmemory", before)


def test_a_full_server_refuses_to_take_stock_and_goes_on_giving_it_back(shard: Shard, full: Callable[[], None]) -> None:
    shard.stock(a=10)
    for i in range(6):
        shard.decide(reserve(f"o{i}", a=1, ttl_ms=0 if i == 5 else 900_000))
    image = shard.image()
    full()
    for operation in (reserve("new", a=1), request_op(Move.ADJUST, "r1", "a", 1), order_op(Move.CONFIRM, "o0")):
        with pytest.raises(OutOfMemoryError):
            shard.call(operation, script="reserve")
    with pytest.raises(OutOfMemoryError):
        shard.load_keys([["b", 1, 0, 0, 0, 0, 0, 0]])
    assert shard.image() == image

    settled = shard.call(
        order_op(Move.CONFIRM, "o0"),
        order_op(Move.RELEASE, "o1"),
        order_op(Move.EXTEND, "o2", ttl_ms=2_000_000),
        order_op(Move.READ, "o3"),
        order_op(Move.EXPIRE, "o5"),
        script="settle",
    )
    assert {result.outcome for result in settled.results} == {Outcome.DONE}
    assert shard.balance("a") == (6, 3, 1, 0, 0)

    m, digest = shard.end()
    assert shard.confirm(m, digest) == 1
    assert ask(shard, m, digest) == 1
    assert shard.take_over(2, m, digest)[0] == OK
    assert shard.check_chain(2, m, digest)[0] == OK
    assert shard.evict(m, term=2) == 3
    assert trim(shard, m, term=2) > 0
    assert shard.freeze(1, "a", term=2) == 1
    assert shard.fence(1, term=2) == 0
    assert shard.read_keys("a")[1][0][-1] == 1
    assert Shard(shard.client, shard.number, epoch=2).draw() == 0
