"""Search: every state of a small configuration, or seeded walks through a large one."""

from array import array
from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import NamedTuple

from tests.model.invariants import broken, settled
from tests.model.protocol import Protocol, Step
from tests.model.state import State


class Result(NamedTuple):
    states: int
    steps: int
    violation: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        counted = f"{self.states:,} states, {self.steps:,} steps"
        if self.violation is None:
            return f"{counted}: nothing found"
        lines = (f"{number:3}. {label}" for number, label in enumerate(self.trace, 1))
        return "\n".join((f"{counted}: {self.violation}", *lines))


class _Search:
    """Breadth first, so that the first counterexample is a shortest one."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.numbers: dict[State, int] = {}
        self.parents = array("l")
        # Edges without faults, backwards: from which states can a settled one be reached?
        self.sources = array("l")
        self.targets = array("l")
        self.steps = 0

    def number(self, state: State, parent: int) -> int:
        known = self.numbers.get(state)
        if known is None:
            known = self.numbers[state] = len(self.parents)
            self.parents.append(parent)
        return known

    def run(self, states_max: int) -> Result:
        protocol = self.protocol
        initial = protocol.initial()
        frontier = [initial]
        self.number(initial, -1)
        while frontier:
            found: list[State] = []
            for state in frontier:
                here = self.numbers[state]
                violation = broken(protocol, state)
                if violation:
                    return self.result(here, violation)
                for _, after, fault in protocol.steps(state):
                    self.steps += 1
                    count = len(self.parents)
                    there = self.number(after, here)
                    if there == count:
                        found.append(after)
                    if not fault:
                        self.sources.append(here)
                        self.targets.append(there)
            if len(self.parents) > states_max:
                raise OverflowError(f"more than {states_max:,} states")
            frontier = found
        stuck = self.stuck()
        if stuck is not None:
            return self.result(stuck, "stuck: without a further fault this never settles")
        return Result(len(self.parents), self.steps)

    def stuck(self) -> int | None:
        """The first state from which no settled one can be reached without a fault."""
        count = len(self.parents)
        before: list[list[int]] = [[] for _ in range(count)]
        for source, target in zip(self.sources, self.targets, strict=True):
            before[target].append(source)
        good = bytearray(count)
        ahead = [n for state, n in self.numbers.items() if settled(self.protocol, state)]
        while ahead:
            here = ahead.pop()
            if not good[here]:
                good[here] = 1
                ahead.extend(before[here])
        found = good.find(0)
        return None if found < 0 else found

    def result(self, end: int, violation: str) -> Result:
        path = [end]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        wanted = set(path)
        on_path = {n: state for state, n in self.numbers.items() if n in wanted}
        labels = [_label(self.protocol, on_path[before], on_path[after]) for after, before in pairwise(path)]
        return Result(len(self.parents), self.steps, violation, tuple(reversed(labels)))


def _label(protocol: Protocol, before: State, after: State) -> str:
    return next(step.label for step in protocol.steps(before) if step.state == after)


def explore(protocol: Protocol, states_max: int = 2_000_000) -> Result:
    """Visit every state; raises OverflowError where there are more than `states_max`."""
    return _Search(protocol).run(states_max)


def walk(protocol: Protocol, seed: int, runs: int, steps_max: int = 200, settle_max: int = 2_000) -> Result:
    """Random runs. Faults come first or never; then each run must settle by itself."""
    random = Random(seed)
    steps = 0
    seen: set[int] = set()
    for _ in range(runs):
        state = protocol.initial()
        trace: list[str] = []
        for label, state in _one_walk(protocol, random, steps_max, settle_max):
            trace.append(label)
            steps += 1
            seen.add(hash(state))
            violation = broken(protocol, state)
            if violation:
                return Result(len(seen), steps, violation, tuple(trace))
        if not settled(protocol, state):
            return Result(len(seen), steps, "stuck: the run does not settle", tuple(trace))
    return Result(len(seen), steps)


def _one_walk(protocol: Protocol, random: Random, steps_max: int, settle_max: int) -> Iterator[tuple[str, State]]:
    state = protocol.initial()
    # Some runs see their faults early, some late, some none.
    fault_share = random.choice((0.0, 0.02, 0.05, 0.2))
    for count in range(steps_max + settle_max):
        quiet = count >= steps_max or fault_share == 0.0
        if quiet and settled(protocol, state):
            return
        chosen = _choose(list(protocol.steps(state)), random, 0.0 if quiet else fault_share)
        if chosen is None:
            return
        state = chosen.state
        yield chosen.label, state


def _choose(steps: list[Step], random: Random, fault_share: float) -> Step | None:
    faults = [step for step in steps if step.fault]
    ordinary = [step for step in steps if not step.fault]
    if faults and (random.random() < fault_share or (fault_share and not ordinary)):
        return random.choice(faults)
    return random.choice(ordinary) if ordinary else None
