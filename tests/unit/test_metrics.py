"""Metrics: one word for one thing, bounded labels, nothing global, and numbers that are right where they are our own."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from kernel.clock import Clock
from kernel.errors import (
    DataRejected,
    DuplicateKey,
    Retryable,
    ScriptFailed,
    StatementFailed,
    StockgateError,
    StoreRefused,
    StoreUnavailable,
)
from kernel.metrics import Metrics
from kernel.tallies import Tallies, Timings

BOUNDED_LABELS = {
    "alarm",
    "check",
    "class",
    "code",
    "dependency",
    "family",
    "kind",
    "line",
    "mode",
    "outcome",
    "pool",
    "role",
    "route",
    "shard",
    "status",
    "store",
    "version",
}
"""Sets that the code bounds. A key, an order, a tenant or the name of an API key is none."""

UNITS = (
    "seconds",
    "bytes",
    "entries",
    "events",
    "messages",
    "keys",
    "operations",
    "sessions",
    "settings",
    "violations",
    "m",
)
"""What a gauge's or histogram's name ends with, before `_max`, `_in_use`; `m` is the number of an entry."""

STATES = {
    "process_info",
    "ready",
    "missing",
    "shard_hot",
    "shard_mode",
    "fenced",
    "leader",
    "worker_alarm",
    "redis_persistence_ok",
}
"""Gauges without a unit: 0 or 1."""

ORDINALS = {"term", "epoch"}


def families(metrics: Metrics) -> dict[str, str]:
    """Kinds by names, without our prefix, of all that a process may show."""
    described = metrics.registry.restricted_registry([]).collect()
    assert list(described) == []
    found = dict[str, str]()
    for collector in list(metrics.registry._collector_to_names):
        for family in getattr(collector, "describe", collector.collect)():
            if family.name.startswith("stockgate_"):
                found[family.name.removeprefix("stockgate_")] = family.type
    return found


def test_a_metric_has_the_name_of_its_attribute() -> None:
    metrics = Metrics()
    exported = {f"{name}_total" if kind == "counter" else name for name, kind in families(metrics).items()}
    assert exported == {name for name in vars(metrics) if name != "registry"}


def test_names_end_with_their_unit() -> None:
    for name, kind in families(Metrics()).items():
        if kind != "counter" and name not in STATES | ORDINALS:
            assert name.removesuffix("_max").removesuffix("_in_use").rpartition("_")[2] in UNITS, name
        assert not name.endswith(("_count", "_sum", "_bucket", "_ms", "_total")), name


def test_labels_are_bounded() -> None:
    metrics = Metrics()
    for name, part in vars(metrics).items():
        if name != "registry":
            labels = getattr(part, "label_names", getattr(part, "_labelnames", ()))
            assert set(labels) <= BOUNDED_LABELS, name


def test_two_processes_in_one_do_not_share() -> None:
    one, other = Metrics(), Metrics()
    one.operations_total.labels("reserve", "done").inc(3)
    one.leader.labels("0").set(1)
    assert b'stockgate_operations_total{kind="reserve",outcome="done"} 3.0' in one.render()
    assert b"stockgate_leader{" in one.render()
    assert b"stockgate_leader{" not in other.render()
    assert b'kind="reserve"' not in other.render()


def test_histograms_cover_their_range() -> None:
    metrics = Metrics()
    metrics.batch_operations.observe(512)
    metrics.worker_batch_events.observe(2_000)
    text = metrics.render()
    assert b'stockgate_batch_operations_bucket{le="512.0"} 1.0' in text
    assert b'stockgate_worker_batch_events_bucket{le="2000.0"} 1.0' in text
    assert b'stockgate_worker_batch_events_bucket{le="1000.0"} 0.0' in text


def test_plain_counters_and_histograms_say_what_the_drivers_would() -> None:
    registry = CollectorRegistry()
    tallies = Tallies("asked", "Times.", ("who",), registry)
    timings = Timings("took_seconds", "Time.", ("who",), (0.5, 2.0), registry)
    tallies.labels("a").inc()
    tallies.labels("a").inc(2)
    for seconds in (0.5, 0.6, 2.0, 7.0):
        timings.labels("a").observe(seconds)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"who": "a", **labels})

    assert value("asked_total") == 3
    assert [value("took_seconds_bucket", le=le) for le in ("0.5", "2.0", "+Inf")] == [1, 3, 4]
    assert (value("took_seconds_count"), value("took_seconds_sum")) == (4, pytest.approx(10.1))
    with pytest.raises(ValueError, match="labels"):
        tallies.labels("a", "b")


def test_a_counter_that_somebody_else_keeps() -> None:
    metrics, told = Metrics(), [7]
    assert metrics.registry.get_sample_value("stockgate_namings_missed_total") is None
    metrics.namings_missed_total.tell(lambda: told[0])
    told[0] = 9
    assert metrics.registry.get_sample_value("stockgate_namings_missed_total") == 9


def test_the_text_is_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.describe("gateway")
    metrics.http_requests_total.labels("/v1/reservations", "201").inc()
    metrics.http_request_seconds.labels("/v1/reservations").observe(0.003)
    read = {family.name for family in text_string_to_metric_families(metrics.render().decode())}
    assert {"stockgate_http_requests", "stockgate_http_request_seconds", "process_resident_memory_bytes"} <= read


def test_what_is_missing_is_shown_as_long_as_it_is() -> None:
    metrics = Metrics()
    metrics.show_readiness({"redis": "away", "shard": "mode opening"})
    metrics.show_readiness({"shard": "mode opening"})
    get = metrics.registry.get_sample_value
    assert get("stockgate_ready") == 0
    assert get("stockgate_missing", {"dependency": "shard"}) == 1
    assert get("stockgate_missing", {"dependency": "redis"}) is None
    metrics.show_readiness({})
    assert get("stockgate_ready") == 1


def test_who_leads_no_more_shows_nothing_of_the_shard() -> None:
    metrics = Metrics()
    for gauge in (metrics.epoch, metrics.log_head_m, metrics.persist_lag_seconds):
        gauge.labels("0").set(5)
    metrics.forget_shard(0)
    metrics.forget_shard(0)
    assert b'shard="0"' not in metrics.render()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (StoreRefused("redis", "MISCONF", "no space"), "MISCONF"),
        (StoreUnavailable("mysql", "unknown"), "UNKNOWN"),
        (StoreUnavailable("rabbitmq", "not_executed"), "NOT_EXECUTED"),
        (ScriptFailed("line 7"), "SCRIPT_FAILED"),
        (DuplicateKey(1062, ""), "DUPLICATE_KEY"),
        (DataRejected(1264, ""), "DATA_REJECTED"),
        (Retryable(1213, ""), "RETRYABLE"),
        (StatementFailed(1064, ""), "STATEMENT_FAILED"),
    ],
)
def test_failures_are_counted_by_a_bounded_code(failure: StockgateError, code: str) -> None:
    metrics = Metrics()
    metrics.count_failure("mysql", failure)
    assert metrics.registry.get_sample_value("stockgate_store_errors_total", {"store": "mysql", "code": code}) == 1


async def test_a_loop_that_is_held_up_shows_it() -> None:
    class Late(Clock):
        """A clock by which every sleep takes a second longer than asked for."""

        def __init__(self) -> None:
            self.now = 0.0

        def monotonic(self) -> float:
            self.now += 1.25 / 2
            return self.now

    metrics = Metrics()
    watching = asyncio.create_task(metrics.watch_loop(Late()))
    while not metrics.registry.get_sample_value("stockgate_event_loop_delay_seconds_count"):
        await asyncio.sleep(0.01)
    watching.cancel()
    assert metrics.registry.get_sample_value("stockgate_event_loop_delay_seconds_sum") == pytest.approx(0.375)
