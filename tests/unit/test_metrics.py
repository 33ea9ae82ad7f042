"""Metrics: all names are there, nothing is global, and labels are bounded."""

from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kernel.metrics import Metrics

NAMES = {
    "operations": ("kind", "outcome"),
    "operation_seconds": ("kind",),
    "batch_operations": (),
    "batch_seconds": (),
    "log_head_m": ("shard",),
    "confirmed_m": ("shard",),
    "applied_m": ("shard",),
    "persist_lag_entries": ("shard",),
    "persist_lag_seconds": ("shard",),
    "leader": ("shard",),
    "leader_changes": ("shard",),
    "epoch": ("shard",),
    "epochs_opened": ("shard",),
    "reconcile_keys": ("shard", "class"),
    "drift_found": (),
    "drift_repaired": (),
    "held_keys": ("shard",),
    "parked_events": ("shard",),
    "stale_entries": ("shard",),
    "replays": ("kind",),
    "unconfirmed_bytes": ("shard",),
    "worker_batch_events": (),
    "worker_duplicates": (),
    "worker_skipped_term": (),
    "worker_alarm": ("shard", "alarm"),
    "http_requests": ("route", "status"),
}


def families(metrics: Metrics) -> dict[str, object]:
    return {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}


def test_every_metric_is_there_with_its_labels() -> None:
    metrics = Metrics()
    collectors: Any = metrics.registry._collector_to_names
    found = {collector._name: collector._labelnames for collector in collectors}
    assert found == {f"stockgate_{name}": labels for name, labels in NAMES.items()}
    assert families(metrics).keys() >= found.keys()
    counters = {name for name in dir(metrics) if name.endswith("_total")}
    assert counters == {f"{name}_total" for name in NAMES if hasattr(metrics, f"{name}_total")}


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
