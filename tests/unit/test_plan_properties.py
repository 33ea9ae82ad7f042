"""However a log is grouped, repeated, redelivered and overlapped, the tables come out the same."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from inventory.tables import HELD
from tests.log_builder import LogBuilder, random_log
from tests.memory_tables import MemoryTables


def deliveries(log: LogBuilder, chance: random.Random) -> list[bytes]:
    """The log in messages of random size that overlap, come again, and now and then come too early."""
    bodies: list[bytes] = []
    next_m = 1
    while next_m <= log.head_m:
        first = max(1, next_m - chance.choice([0, 0, 0, 1, 3]))
        last = min(log.head_m, next_m + chance.randint(0, 5))
        bodies.append(log.message(first, last))
        next_m = last + 1
        if chance.random() < 0.2:
            bodies.append(chance.choice(bodies))
    for _ in range(chance.randint(0, 4)):
        place = chance.randrange(len(bodies))
        other = min(len(bodies) - 1, place + chance.randint(0, 6))
        bodies[place], bodies[other] = bodies[other], bodies[place]
    return bodies


def deliver(tables: MemoryTables, log: LogBuilder, chance: random.Random) -> None:
    """Feed the deliveries in transactions of random size; the worker dies now and then, and all unacknowledged returns."""
    queue = deliveries(log, chance)
    unacknowledged: list[bytes] = []
    while queue:
        size = chance.randint(1, 6)
        batch, queue = queue[:size], queue[size:]
        planned = tables.apply(*batch)
        assert not planned.stopped, tables.row
        unacknowledged = [*unacknowledged, *batch]
        if chance.random() < 0.15:
            tables.crash()
            queue = [*unacknowledged, *queue]
        if chance.random() < 0.5:
            unacknowledged = [item.body for item in tables.held]
    # The leader sends again what is wanted.
    for _ in range(100):
        if not tables.row.wanted_m and tables.row.applied_m == log.head_m:
            return
        tables.apply(log.message(tables.row.wanted_m or tables.row.applied_m + 1, log.head_m))
    raise AssertionError(f"never complete: {tables.row}")


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), chance_seed=st.integers(0, 2**32))
def test_any_delivery_of_a_log_gives_the_same_tables(seed: int, chance_seed: int) -> None:
    log = random_log(seed, operations=60)
    straight = MemoryTables.for_log(log)
    straight.apply(log.message(1, log.head_m))
    tables = MemoryTables.for_log(log)
    deliver(tables, log, random.Random(chance_seed))
    assert tables.image() == straight.image()
    assert not tables.parked


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), chance_seed=st.integers(0, 2**32))
def test_a_key_that_fails_somewhere_is_parked_the_same_way(seed: int, chance_seed: int) -> None:
    """A balance that is wrong from the start: its first event fails, everything else is as if it were not there."""
    log = random_log(seed, operations=60)
    poisoned = min(log.keys)
    images: list[object] = []
    for chance in (None, random.Random(chance_seed)):
        tables = MemoryTables.for_log(log)
        tables.balances[poisoned] = tables.balances[poisoned]._replace(available=1)
        if chance is None:
            tables.apply(log.message(1, log.head_m))
        else:
            deliver(tables, log, chance)
        images.append(tables.image())
        assert tables.balances[poisoned].held == HELD
        assert tables.balances[poisoned].seq == 0
        assert len(tables.parked) == log.keys[poisoned].seq
        for name, key in log.keys.items():
            if name != poisoned:
                assert tables.quantities(name) == key.quantities
                assert tables.balances[name].held == 0
    assert images[0] == images[1]
