"""Dashboards, alert rules and their page: they name what exists, each other completely, and promtool accepts them."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from kernel.metrics import Metrics
from kernel.settings import Settings
from observability.dashboards import DASHBOARDS, as_json
from observability.draw import in_unit, read_dashboard
from observability.scrape import Target, targets_of
from stockgate.cli import app
from stockgate.servers import find_program

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "observability" / "grafana"
PROMETHEUS = ROOT / "observability" / "prometheus"
RUNBOOK = ROOT / "docs" / "alerts.md"

NAME = re.compile(r"\b(?:stockgate|process)_[a-z_]+\b")
NOT_DRAWN = {"stockgate_process_info"}
"""What says which version runs: for a person who asks."""

PROMTOOL_S = 280
"""It takes seconds; on a machine that is busy with something else, minutes."""

FILES = sorted(GRAFANA.glob("*.json"))


def exported() -> set[str]:
    """Every name that a process may show, as queries write it."""
    names = set[str]()
    for collector in list(Metrics().registry._collector_to_names):
        for family in getattr(collector, "describe", collector.collect)():
            match family.type:
                case "counter":
                    names.add(f"{family.name}_total")
                case "histogram":
                    names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
                case _:
                    names.add(family.name)
    return names


def rules() -> list[dict[str, Any]]:
    return [
        rule for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]


def panels(file: Path) -> list[dict[str, Any]]:
    return [panel for panel in read_dashboard(file)["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Where each expression stands, and the expression."""
    for file in FILES:
        for panel in panels(file):
            for target in panel["targets"]:
                yield f"{file.stem}: {panel['title']}", target["expr"]
    for rule in rules():
        yield rule["alert"], rule["expr"]


# --- names ------------------------------------------------------------------------------------------------------------


def test_queries_name_metrics_that_some_process_exports() -> None:
    names = exported()
    used = {name: where for where, expression in expressions() for name in NAME.findall(without_strings(expression))}
    assert not {f"{where}: {name}" for name, where in used.items() if name not in names}


def test_every_metric_is_drawn_or_watched() -> None:
    used = {name for _, expression in expressions() for name in NAME.findall(expression)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in used}
    unseen = {name for name in exported() if re.sub(r"_(bucket|sum|count)$", "", name) not in families}
    assert {name for name in unseen if name.startswith("stockgate_")} <= NOT_DRAWN


def without_strings(expression: str) -> str:
    return re.sub(r'"[^"]*"', '""', expression)


def label_names() -> set[str]:
    parts = [part for name, part in vars(Metrics()).items() if name != "registry"]
    return {label for part in parts for label in getattr(part, "label_names", getattr(part, "_labelnames", ()))}


def test_queries_group_and_select_by_labels_that_exist() -> None:
    known = label_names() | {"le", "job", "instance"}
    for where, expression in expressions():
        grouped = [label.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in group.split(",")]
        selected = re.findall(r"(\w+)\s*(?:=|!=|=~|!~)\"", expression)
        assert {*grouped, *selected} - {""} <= known, where


# --- dashboards -------------------------------------------------------------------------------------------------------


def test_the_files_are_what_the_description_makes() -> None:
    assert {file.stem: file.read_text() for file in FILES} == {board.name: as_json(board) for board in DASHBOARDS}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_is_one_that_grafana_takes(file: Path) -> None:
    board = read_dashboard(file)
    assert board["uid"] == file.stem
    assert board["schemaVersion"] >= 38
    assert [(one["name"], one["type"], one["query"]) for one in board["templating"]["list"]] == [
        ("datasource", "datasource", "prometheus")
    ]
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in panels(file):
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None
        assert [step["value"] for step in steps[1:]] == sorted({step["value"] for step in steps[1:]}), panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert named <= label_names() | {"instance"}, panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_panels_do_not_lie_on_each_other(file: Path) -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in read_dashboard(file)["panels"]]
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        above = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or above, (one, other)
    assert all(place["x"] + place["w"] <= 24 for _, place in places)


@pytest.mark.parametrize(
    ("value", "unit", "written"),
    [
        (0.0042, "s", "4.2 ms"),
        (90, "s", "1.5 min"),
        (0, "s", "0 s"),
        (3 * 1024 * 1024, "bytes", "3 MiB"),
        (0.0134, "percentunit", "1.34 %"),
        (12_500, "reqps", "12.5 k req/s"),
        (1, "none", "1"),
        (float("nan"), "s", "-"),
    ],
)
def test_values_are_written_in_their_unit(value: float, unit: str, written: str) -> None:
    assert in_unit(value, unit) == written


def test_processes_of_a_stack_are_targets() -> None:
    assert targets_of({"gateway-2": "http://127.0.0.1:9/metrics", "persist-worker": "http://127.0.0.1:8/metrics"}) == [
        Target("stockgate-gateway", "gateway-2", "127.0.0.1:9"),
        Target("stockgate-persist-worker", "persist-worker", "127.0.0.1:8"),
    ]


# --- alerts and their page --------------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    """The page's sections about alerts by heading."""
    parts = re.split(r"^## (\w+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    assert set(names) == set(sections())
    for rule in rules():
        assert rule["annotations"]["runbook_url"] == f"docs/alerts.md#{rule['alert'].lower()}"


def test_a_rule_says_how_bad_it_is_and_shows_values() -> None:
    for rule in rules():
        text = sections()[rule["alert"]]
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert text.strip().startswith(f"{rule['labels']['severity']}. "), (
            f"{rule['alert']}: the page says another severity"
        )
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        for name in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"] + rule["annotations"]["description"]):
            assert name in label_names() | {"instance", "job"}


@pytest.mark.parametrize("what", ["For customers", "Look", "Do", "Wake"])
def test_a_page_answers_what_somebody_on_call_asks(what: str) -> None:
    without = [name for name, text in sections().items() if f"- **{what}**: " not in text]
    assert not without


def test_the_page_names_what_exists() -> None:
    text = RUNBOOK.read_text()
    commands = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert set(re.findall(r"`stockgate ([a-z-]+)", text)) <= commands
    assert set(NAME.findall(text)) <= exported()
    settings = {f"STOCKGATE_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"\bSTOCKGATE_[A-Z_]+\b", text)) <= settings
    anchors = {name.lower() for name in sections()}
    assert set(re.findall(r"\(#(\w+)\)", text)) <= anchors


# --- promtool ---------------------------------------------------------------------------------------------------------


def promtool(*arguments: str | Path) -> str:
    """Run it; its words are the failure's message."""
    done = subprocess.run(
        [find_program("promtool"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PROMTOOL_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_promtool_takes_the_rules_and_the_example(tmp_path: Path) -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", PROMETHEUS / "alerts.yml")
    for file in ("alerts.yml", "prometheus.yml.example"):
        shutil.copy(PROMETHEUS / file, tmp_path)
    (tmp_path / "stockgate-metrics.key").write_text("key")
    promtool("check", "config", tmp_path / "prometheus.yml.example")


@pytest.mark.timeout(PROMTOOL_S + 20)
def test_every_alert_fires_and_is_silent_as_its_tests_say() -> None:
    assert "SUCCESS" in promtool("test", "rules", PROMETHEUS / "alerts_test.yml")


def test_the_tests_of_rules_leave_none_out() -> None:
    cases = {case["name"]: case for case in yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]}
    shown = {name for series in cases["all is well"]["input_series"] for name in [series["series"].partition("{")[0]]}
    for rule in rules():
        fires = [
            sample["labels"] for test in cases[rule["alert"]]["promql_expr_test"] for sample in test["exp_samples"]
        ]
        assert any(f'alertname="{rule["alert"]}"' in labels for labels in fires), rule["alert"]
        assert any(not test["exp_samples"] for test in cases[rule["alert"]]["promql_expr_test"]), rule["alert"]
        assert set(NAME.findall(without_strings(rule["expr"]))) <= shown, f"{rule['alert']} is not quiet, it is not fed"
    assert all(test["exp_samples"] == [] for test in cases["all is well"]["promql_expr_test"])
