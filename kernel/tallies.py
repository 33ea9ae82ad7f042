"""Counters and histograms for what happens with every request: plain numbers, read only when somebody scrapes.

The driver's own take a lock for each number, and cost several times as much; here one event loop writes, and nobody else.
They are for the hot path alone: whatever is rarer uses the driver's.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

Child = TypeVar("Child")


class Tally:
    """One counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def inc(self, amount: float = 1) -> None:
        """Count `amount` more; never negative."""
        self.value += amount


class Timing:
    """One histogram: how many values were at most each bound, the last place for what is above all, and their sum."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Take in one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class _ByLabels:
    """Children by their labels' values, made when they are first asked for."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.name: Final = name
        self.text: Final = text
        self.label_names: Final = tuple(labels)

    def _child(
        self, children: dict[tuple[str, ...], Child], values: tuple[str, ...], new: Callable[[], Child]
    ) -> Child:
        child = children.get(values)
        if child is None:
            if len(values) != len(self.label_names):
                raise ValueError(f"{self.name} has the labels {self.label_names}, not {len(values)}")
            child = children[values] = new()
        return child


class Tallies(_ByLabels, Collector):
    """A family of counters by labels; `name` without `_total`."""

    def __init__(self, name: str, text: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        super().__init__(name, text, labels)
        self._children: dict[tuple[str, ...], Tally] = {}
        registry.register(self)

    def labels(self, *values: str) -> Tally:
        """The counter with these values, in the labels' order; keep it where it is needed often."""
        return self._child(self._children, values, Tally)

    def describe(self) -> Iterator[Metric]:
        """The family without its numbers."""
        yield CounterMetricFamily(self.name, self.text, labels=self.label_names)

    def collect(self) -> Iterator[Metric]:
        """The numbers as they are now."""
        family = CounterMetricFamily(self.name, self.text, labels=self.label_names)
        for values, tally in self._children.items():
            family.add_metric(values, tally.value)
        yield family


class Timings(_ByLabels, Collector):
    """A family of histograms by labels, in the unit that the name ends with; `bounds` ascend."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        super().__init__(name, text, labels)
        self._bounds = tuple(bounds)
        self._names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        self._children: dict[tuple[str, ...], Timing] = {}
        registry.register(self)

    def labels(self, *values: str) -> Timing:
        """The histogram with these values, in the labels' order; keep it where it is needed often."""
        return self._child(self._children, values, lambda: Timing(self._bounds))

    def describe(self) -> Iterator[Metric]:
        """The family without its numbers."""
        yield HistogramMetricFamily(self.name, self.text, labels=self.label_names)

    def collect(self) -> Iterator[Metric]:
        """The numbers as they are now, each bound with all that is below it."""
        family = HistogramMetricFamily(self.name, self.text, labels=self.label_names)
        for values, timing in self._children.items():
            below, buckets = 0, list[tuple[str, float]]()
            for name, count in zip(self._names, timing.counts, strict=True):
                below += count
                buckets.append((name, below))
            family.add_metric(values, buckets, timing.sum)
        yield family


class ToldCounter(Collector):
    """A counter whose number somebody else keeps; shown once `tell` said who. It must never fall."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name, self._text = name, text
        self._ask: Callable[[], float] | None = None
        registry.register(self)

    def tell(self, ask: Callable[[], float]) -> None:
        """Name what answers the number; it is asked at every scrape."""
        self._ask = ask

    def describe(self) -> Iterator[Metric]:
        """The family without its number."""
        yield CounterMetricFamily(self._name, self._text)

    def collect(self) -> Iterator[Metric]:
        """The number as it is now."""
        family = CounterMetricFamily(self._name, self._text)
        if self._ask is not None:
            family.add_metric((), self._ask())
        yield family
