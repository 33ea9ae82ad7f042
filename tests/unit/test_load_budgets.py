"""Budgets of the load scenarios: what breaks a bound fails, and so does a bound that nothing is measured against."""

from pathlib import Path

import msgspec
import pytest

from loadtests.books import Books, Verdict
from loadtests.budgets import Measured, RequestBudget, Result, ScenarioBudget, TotalBudget, judge, read_budgets
from loadtests.scenarios import SCENARIOS

BUDGETS = Path(__file__).parents[2] / "loadtests" / "budgets.toml"


def budget(total: TotalBudget | None = None, **requests: RequestBudget) -> ScenarioBudget:
    return ScenarioBudget(
        users=1, seconds=1, inventory_keys=1, requests=requests, total=total or TotalBudget(), units_per_user=3
    )


def result(*, failures: int = 0, crashes: int = 0, books: Books | None = None) -> Result:
    measured = Measured(requests=100, failures=failures, per_s=50.0, p50_ms=10.0, p95_ms=20.0, p99_ms=30.0)
    return Result({"reserve": measured}, {}, crashes, 50.0, books or Books())


def failed(budget: ScenarioBudget, result: Result, verdict: Verdict | None = None) -> list[str]:
    return [f"{row.name} {row.what}" for row in judge(budget, result, verdict or Verdict()) if not row.ok]


FITTING = RequestBudget(p50_ms=10, p95_ms=20, p99_ms=30, requests_per_s_min=50)


def test_what_keeps_its_budget_passes() -> None:
    assert failed(budget(TotalBudget(requests_per_s_min=50), reserve=FITTING), result()) == []


@pytest.mark.parametrize(
    ("bounds", "broken"),
    [
        (RequestBudget(p50_ms=9), "reserve p50_ms"),
        (RequestBudget(p95_ms=19), "reserve p95_ms"),
        (RequestBudget(p99_ms=29), "reserve p99_ms"),
        (RequestBudget(requests_per_s_min=51), "reserve requests_per_s"),
    ],
)
def test_each_bound_of_a_request_can_break(bounds: RequestBudget, broken: str) -> None:
    assert failed(budget(reserve=bounds), result()) == [broken]


def test_failures_break_the_error_ratio_of_the_request_and_of_the_run() -> None:
    assert failed(budget(reserve=FITTING), result(failures=1)) == ["reserve error_ratio", "total error_ratio"]


@pytest.mark.parametrize("wrong", ["lost", "doubled", "oversold", "drift", "unanswered"])
def test_nothing_may_be_wrong_in_the_books(wrong: str) -> None:
    assert failed(budget(reserve=FITTING), result(), msgspec.convert({wrong: 1}, Verdict)) == [f"total {wrong}"]


def test_a_crash_of_a_user_fails() -> None:
    assert failed(budget(reserve=FITTING), result(crashes=1)) == ["total crashes"]


def test_bounds_that_only_some_scenarios_have() -> None:
    total = TotalBudget(unsold_max=0, replays_min=5, given_up_min=2, requests_per_s_min=51)
    short = result(books=Books(replays=4, given_up=1))
    broken = ["total unsold", "total requests_per_s", "total replays", "total given_up"]
    assert failed(budget(total, reserve=FITTING), short, Verdict(unsold=1)) == broken
    assert failed(budget(reserve=FITTING), short, Verdict(unsold=1)) == []


def test_requests_and_budgets_that_have_grown_apart_fail() -> None:
    assert failed(budget(), result()) == ["reserve without a budget"]
    assert failed(budget(reserve=FITTING, confirm=FITTING), result()) == ["confirm requests"]
    assert failed(budget(reserve=FITTING, confirm=RequestBudget(rare=True)), result()) == []


def test_stock_grows_with_the_users_where_it_says_so() -> None:
    assert budget().stock(7) == 21


def test_every_scenario_has_budgets_with_a_latency_for_each_request() -> None:
    budgets = read_budgets(BUDGETS)
    assert sorted(budgets) == sorted(SCENARIOS)
    for name, scenario in budgets.items():
        assert scenario.total.requests_per_s_min, name
        assert scenario.total.error_ratio_max == 0, name
        assert scenario.requests, name
        assert all(bounds.p50_ms and bounds.p95_ms and bounds.p99_ms for bounds in scenario.requests.values()), name


def test_a_misspelt_bound_is_refused(tmp_path: Path) -> None:
    (tmp_path / "budgets.toml").write_text(
        "[a]\nusers = 1\nseconds = 1\ninventory_keys = 1\n[a.requests]\nreserve = { p90_ms = 1 }\n"
    )
    with pytest.raises(msgspec.ValidationError, match="p90_ms"):
        read_budgets(tmp_path / "budgets.toml")
