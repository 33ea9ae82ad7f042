"""Timelines: every legal history is without contradiction, and a row that is missing or altered is found."""

import random
from collections import defaultdict

import msgspec
import pytest

from inventory.events import decode_changes
from inventory.explain_order import FIRST_PLACE, place_text, read_place
from inventory.explain_timeline import Step, checked_key, checked_order, last_states, log_step
from inventory.explain_verdict import held_key, in_flight_key
from tests.log_builder import LogBuilder, random_log


def steps_of(log: LogBuilder) -> list[Step]:
    return [
        log_step(change, event, log.epoch, m, confirmed=True)
        for m, (_, payload) in enumerate(log.entries, 1)
        for change in decode_changes(payload)
        for event in change.events
    ]


def by_key(steps: list[Step]) -> dict[str, list[Step]]:
    """Each key's steps, the newest first."""
    found: defaultdict[str, list[Step]] = defaultdict(list)
    for step in reversed(steps):
        found[step.inventory_key].append(step)
    return found


def contradictions(steps: list[Step]) -> list[str]:
    return [step.contradiction for step in steps if step.contradiction]


@pytest.mark.parametrize("seed", range(8))
def test_a_legal_history_has_no_contradiction(seed: int) -> None:
    log = random_log(seed)
    steps = steps_of(log)
    for of_key in by_key(steps).values():
        assert contradictions(checked_key(of_key, len(of_key))) == []
        # A page is held against the row behind it, so where it begins and ends makes no difference.
        assert contradictions(checked_key(of_key[1:4], 2)) == []
    orders: defaultdict[str, list[Step]] = defaultdict(list)
    for step in steps:
        orders[step.order_id].append(step)
    orders.pop("")
    for order_id, of_order in orders.items():
        assert contradictions(checked_order(of_order)) == []
        left = {line.inventory_key: line.state.name for line in log.orders[order_id].lines}
        assert last_states(of_order) == left


@pytest.mark.parametrize("seed", range(8))
def test_a_missing_or_altered_row_is_found(seed: int) -> None:
    chance = random.Random(seed)
    of_key = chance.choice(list(by_key(steps_of(random_log(seed))).values()))
    # Of the newest row only the balance can tell that it is missing.
    place = chance.randrange(1, len(of_key))
    without = [*of_key[:place], *of_key[place + 1 :]]
    assert contradictions(checked_key(without, len(without))) == [f"seq {of_key[place].seq} is missing"]
    after = msgspec.structs.replace(of_key[place].after, sold=of_key[place].after.sold + 1)
    altered = [*of_key]
    altered[place] = msgspec.structs.replace(of_key[place], after=after)
    # The row itself does not follow, and the next one does not follow from it.
    assert len(contradictions(checked_key(altered, len(altered)))) == 2


def test_a_move_that_its_line_does_not_allow_is_found() -> None:
    log = LogBuilder()
    log.adjust("a", 5)
    log.reserve("o", {"a": 1})
    log.confirm("o")
    log.entry()
    reserve, confirm = steps_of(log)[1:]
    assert contradictions(checked_order([confirm])) == ["CONFIRM of a line in state NONE"]
    assert contradictions(checked_order([reserve, reserve])) == ["RESERVE of a line in state RESERVED"]


@pytest.mark.parametrize("key", ["k", "a.b.c", "..", "sku 1/{x}.9"])
def test_a_place_comes_back_out_of_its_cursor(key: str) -> None:
    place = (3, 17, 4, key, 9)
    assert read_place(place_text(place)) == place
    assert read_place("") == FIRST_PLACE


def test_a_command_can_be_typed_as_it_is_printed() -> None:
    after = steps_of(random_log(1))[0].after
    assert "`stockgate explain 'sku 1@x'`" in in_flight_key("sku 1@x", after, 1, "somewhere").next_step
    assert "`stockgate explain -- -k`" in in_flight_key("-k", after, 1, "somewhere").next_step
    said = held_key("a'b", 1, False, "why").next_step
    assert """`stockgate repair replay_held 'a'"'"'b' --reason '…' --dry-run`""" in said
    assert "`stockgate repair --reason '…' -- reject_held -k`" in held_key("-k", 2, True, "why").next_step
