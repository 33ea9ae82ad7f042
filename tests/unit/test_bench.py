"""What the benchmark makes of its measurements: ratios of neighbours, growth, verdicts, the page, and the probe's own kind."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from loadtests.bench import read_arguments
from loadtests.bench_endurance import MemorySample, growth
from loadtests.bench_machine import probe_fsync
from loadtests.bench_page import page_of
from loadtests.bench_processes import TICK_S, CpuReading, resident_mb
from loadtests.bench_rounds import ratio
from loadtests.bench_system import BenchError
from loadtests.bench_targets import TARGETS, judge
from loadtests.bench_wrk import Round


def round_of(accepted: int) -> Round:
    return Round(accepted, accepted, 1.0, 1.0, 2.0, 0.1, {})


def scatter(value: float) -> dict[str, Any]:
    return {"median": value, "lowest": value / 2, "highest": value * 2, "rounds": [value]}


def parts(**changed: Any) -> dict[str, Any]:
    """Results of all judged parts, every one of which reaches its target."""
    rates = {"stockgate": {"per_s": scatter(1234), "p50_ms": scatter(1), "p99_ms": scatter(2)}}
    found: dict[str, Any] = {
        "designs": {"seed_ratio": scatter(3.0), "mysql_ratio": scatter(4.0), "rates": rates},
        "constant": {"constant_share": scatter(0.4), "rates": rates},
        "db": {"mysql_ratio": scatter(2.5), "rates": rates},
        "operations": {
            "operations_per_s": scatter(25_000),
            "script_share": scatter(0.35),
            "rates": {**rates, "script alone": rates["stockgate"]},
        },
        "worker": {"events_per_s": scatter(25_000)},
        "sustained": {
            "capacity_per_s": 1000,
            "asked_per_s": 900,
            "kept_share": 0.99,
            "seconds": 60.0,
            "drain_s": 5.0,
            "backlog_entries": {"median": 1, "highest": 7},
            "latency_ms": {
                f"{kind}_p{each}": 3.0 for kind in ("corrected", "late") for each in ("50", "90", "99", "99_9", "100")
            },
        },
        "memory": {
            "operations": 1_000_000,
            "mb_after": {"gateway-1": 199.0, "persist-worker": 199.0},
            "growth_mb_second_half": {"gateway-1": 9.0, "persist-worker": -1.0},
            "open_orders": {"orders": 1000, "bytes_each": 599.0, "log_bytes": 5_000_000, "bytes_each_with_log": 700.0},
        },
        "machine": {
            "date": "2026-12-01 00:00 UTC", "commit": "abc", "cpu": "a processor", "cores": 8, "cores_used": 2,
            "memory_mib": 2048, "kernel": "6", "file_system": "ext4", "load_average_1m": 0.1,
            "fsync": {"writes": 10, "block_bytes": 4096, "median_us": 300, "p99_us": 900, "max_us": 1000},
            "versions": {"Python": "3.11"},
        },
        "cpu": {
            "per_s": scatter(1000),
            "us_per_operation": {"gateway-1": scatter(100), "all": scatter(200)},
            "core_shares": {"gateway-1": scatter(0.5), "others": scatter(0.1)},
        },
    }  # fmt: skip
    return found | changed


def test_a_ratio_compares_each_round_with_its_neighbour() -> None:
    # The machine became half as quick after the first round: the ratio does not notice.
    found = ratio([round_of(400), round_of(200), round_of(180)], [round_of(100), round_of(50), round_of(50)])
    assert (found.median, found.lowest, found.highest) == (4.0, 3.6, 4.0)
    with pytest.raises(ValueError, match="zip"):
        ratio([round_of(1)], [round_of(1), round_of(1)])


def test_every_target_is_met_on_its_bound_and_missed_beyond_it() -> None:
    judged = judge(parts())
    assert len(judged) == len(TARGETS)
    assert all(target["met"] for target in judged)
    worse = parts(
        designs={"seed_ratio": scatter(2.99), "mysql_ratio": scatter(3.99)},
        constant={"constant_share": scatter(0.399)},
        db={"mysql_ratio": scatter(2.49)},
        operations={"operations_per_s": scatter(24_999), "script_share": scatter(0.349)},
        worker={"events_per_s": scatter(24_999)},
        sustained={"kept_share": 0.989, "drain_s": 5.1},
        memory={
            "mb_after": {"gateway-1": 200.0, "persist-worker": 200.0},
            "growth_mb_second_half": {"gateway-1": 10.0, "persist-worker": 10.0},
            "open_orders": {"bytes_each": 600.0},
        },
    )
    assert not any(target["met"] for target in judge(worse))
    assert judge({"worker": parts()["worker"]}) == [target for target in judged if target["part"] == "worker"]


def test_growth_is_that_of_the_wanted_part_only() -> None:
    # It grows until 500 operations and then stays.
    samples = [MemorySample(done, {"gateway-1": 50 + min(done, 500) / 10}) for done in range(0, 1001, 50)]
    assert growth(samples, "gateway-1", 500, 1000) == pytest.approx(0, abs=1e-9)
    assert growth(samples, "gateway-1", 0, 500) == pytest.approx(50)
    with pytest.raises(BenchError, match="samples"):
        growth(samples, "gateway-1", 990, 1000)


def test_the_page_says_what_was_missed_and_what_was_not_measured() -> None:
    measured = parts(worker={"events_per_s": scatter(17)})
    result = {
        "quick": False,
        "targets": judge(measured),
        "failed": {"designs": "BenchError: no\nmore"},
        "parts": measured,
    }
    page = page_of(json.loads(json.dumps(result)))
    assert "| at least 25000 | 17.0 /s | 8.50 to 34.0 | **missed** |" in page
    assert "**Not measured**: designs: BenchError: no" in page
    assert page.count("**missed**") == 1
    assert "A quick run" not in page
    assert "A quick run" in page_of({"quick": True, "targets": [], "failed": {}, "parts": {}})


def test_the_command_line_measures_everything_unless_a_part_is_named() -> None:
    assert read_arguments(["--quick"]).part == "all"
    assert read_arguments([]).seconds == 5.0
    assert read_arguments(["cpu", "--ack", "redis", "--quick"]).ack == "redis"


def test_cpu_and_memory_of_processes_are_those_of_the_kernel(tmp_path: Path) -> None:
    mine, began = {"mine": os.getpid()}, time.process_time()
    before, looping = CpuReading.take(mine), time.process_time()
    while time.process_time() - looping < 0.2:
        pass
    found = CpuReading.take(mine).since(before).by_name["mine"]
    # The kernel counts in ticks.
    assert 0.2 - 2 * TICK_S <= found <= time.process_time() - began + 2 * TICK_S
    assert 5 < resident_mb(mine)["mine"] < 2_000
    probed = probe_fsync(tmp_path, 5)
    assert 0 < probed["median_us"] <= probed["p99_us"] <= probed["max_us"]
