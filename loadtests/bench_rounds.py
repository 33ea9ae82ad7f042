"""Rounds of several targets in turn, and what they say: medians, ratios of neighbours, how much both scatter."""

import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtests.bench_wrk import Round


def say(text: str) -> None:
    """Progress for people; the result goes to the standard output."""
    print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Scatter:
    """A figure that was measured several times."""

    median: float
    lowest: float
    highest: float
    values: Sequence[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Scatter":
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values), values)

    def as_json(self, digits: int = 3) -> dict[str, Any]:
        return {
            "median": round(self.median, digits),
            "lowest": round(self.lowest, digits),
            "highest": round(self.highest, digits),
            "rounds": [round(value, digits) for value in self.values],
        }


Take = Callable[[], Awaitable[Round]]


async def take_turns(targets: Mapping[str, Take], rounds: int) -> dict[str, list[Round]]:
    """A B A B …: each target once in every round, always in the same order, so that neighbours can be compared."""
    taken: dict[str, list[Round]] = {name: [] for name in targets}
    for number in range(1, rounds + 1):
        for name, take in targets.items():
            one = await take()
            taken[name].append(one)
            say(
                f"  {number}/{rounds} {name:24} {one.per_s:9,.0f}/s  p50 {one.p50_ms:6.2f} ms  p99 {one.p99_ms:7.2f} ms"
            )
    return taken


def ratio(numerator: Sequence[Round], denominator: Sequence[Round]) -> Scatter:
    """Of two targets' rates, each round with its neighbour of the same turn."""
    return Scatter.of([one.per_s / other.per_s for one, other in zip(numerator, denominator, strict=True)])


def rates(taken: Mapping[str, Sequence[Round]]) -> dict[str, Any]:
    """Per target: operations per second and latencies."""
    return {
        name: {
            "per_s": Scatter.of([one.per_s for one in rounds]).as_json(0),
            "p50_ms": Scatter.of([one.p50_ms for one in rounds]).as_json(2),
            "p99_ms": Scatter.of([one.p99_ms for one in rounds]).as_json(2),
        }
        for name, rounds in taken.items()
    }
