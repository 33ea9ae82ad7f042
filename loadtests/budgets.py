"""Budgets decide pass or fail: `budgets.toml` read as types, and what was measured held against it. Pure."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from loadtests.books import Books, Verdict


class RequestBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one request name; what is None is not judged. Latencies in ms, rates per second of the run."""

    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    error_ratio_max: float = 0.0
    requests_per_s_min: float | None = None
    rare: bool = False
    """It depends on chance whether a short run asks for this at all."""


class TotalBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of the whole run. What is wrong in the books (see `Verdict`) is 0 unless said otherwise."""

    requests_per_s_min: float | None = None
    error_ratio_max: float = 0.0
    lost_max: int = 0
    doubled_max: int = 0
    oversold_max: int = 0
    drift_max: int = 0
    unanswered_max: int = 0
    unsold_max: int | None = None
    replays_min: int | None = None
    given_up_min: int | None = None


class ScenarioBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One scenario: how much load, and what must hold under it. `units_per_user` or `units` of stock in each key."""

    users: int
    seconds: int
    inventory_keys: int
    requests: dict[str, RequestBudget]
    total: TotalBudget = TotalBudget()
    units: int = 0
    units_per_user: int = 0

    def stock(self, users: int) -> int:
        """Units of each key for this many users."""
        return self.units + self.units_per_user * users


class Measured(msgspec.Struct, frozen=True):
    """One request name as Locust measured it."""

    requests: int
    failures: int
    per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


class Result(msgspec.Struct):
    """What Locust's process leaves behind."""

    by_name: dict[str, Measured]
    errors: dict[str, int]
    """How often each unexpected answer came, as `name: text`."""
    crashes: int
    """Exceptions that ended a user's task: a mistake of the scenario, or an answer that nobody foresaw."""
    per_s: float
    books: Books


class Row(msgspec.Struct, frozen=True):
    """One bound: `name` of the request or `total`, what was measured, the budget, whether it holds."""

    name: str
    what: str
    measured: float
    budget: float
    ok: bool


def read_budgets(path: Path) -> dict[str, ScenarioBudget]:
    """Budgets by scenario. Raises msgspec.ValidationError for a field that is none, OSError without the file."""
    return msgspec.toml.decode(path.read_bytes(), type=dict[str, ScenarioBudget])


def judge(budget: ScenarioBudget, result: Result, verdict: Verdict) -> list[Row]:
    """Every bound with what was measured.

    A name that has a budget and was never asked fails, and so does one that was asked and has none: both mean that
    scenario and budgets have grown apart.
    """
    rows: list[Row] = []
    for name in sorted(budget.requests.keys() | result.by_name.keys()):
        bounds, measured = budget.requests.get(name), result.by_name.get(name)
        if measured is None and bounds is not None and bounds.rare:
            continue
        if bounds is None or measured is None:
            count = measured.requests if measured else 0
            rows.append(Row(name, "requests" if measured is None else "without a budget", count, 1, ok=False))
            continue
        rows += _judge_request(name, bounds, measured)
    return rows + _judge_total(budget.total, result, verdict)


def _judge_request(name: str, bounds: RequestBudget, measured: Measured) -> list[Row]:
    upper: dict[str, tuple[float, float | None]] = {
        "p50_ms": (measured.p50_ms, bounds.p50_ms),
        "p95_ms": (measured.p95_ms, bounds.p95_ms),
        "p99_ms": (measured.p99_ms, bounds.p99_ms),
        "error_ratio": (measured.failures / measured.requests, bounds.error_ratio_max),
    }
    return _rows(name, upper, {"requests_per_s": (measured.per_s, bounds.requests_per_s_min)})


def _judge_total(bounds: TotalBudget, result: Result, verdict: Verdict) -> list[Row]:
    requests = sum(each.requests for each in result.by_name.values())
    failures = sum(each.failures for each in result.by_name.values())
    upper: dict[str, tuple[float, float | None]] = {
        "error_ratio": (failures / requests if requests else 1.0, bounds.error_ratio_max),
        "lost": (verdict.lost, bounds.lost_max),
        "doubled": (verdict.doubled, bounds.doubled_max),
        "oversold": (verdict.oversold, bounds.oversold_max),
        "drift": (verdict.drift, bounds.drift_max),
        "unanswered": (verdict.unanswered, bounds.unanswered_max),
        "crashes": (result.crashes, 0),
        "unsold": (verdict.unsold, bounds.unsold_max),
    }
    lower: dict[str, tuple[float, float | None]] = {
        "requests_per_s": (result.per_s, bounds.requests_per_s_min),
        "replays": (result.books.replays, bounds.replays_min),
        "given_up": (result.books.given_up, bounds.given_up_min),
    }
    return _rows("total", upper, lower)


def _rows(
    name: str, upper: Mapping[str, tuple[float, float | None]], lower: Mapping[str, tuple[float, float | None]]
) -> list[Row]:
    at_most = [Row(name, what, is_, may, is_ <= may) for what, (is_, may) in upper.items() if may is not None]
    at_least = [Row(name, what, is_, must, is_ >= must) for what, (is_, must) in lower.items() if must is not None]
    return at_most + at_least
