"""The metrics of one process, on a registry of its own: nothing global, so that two may live in one test.

Labels are shards, kinds, outcomes and routes. Inventory keys, orders, tenants and codes are never labels.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

SECONDS_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WORKER_BATCH_BUCKETS: Final = (1, 5, 10, 50, 100, 250, 500, 1_000, 2_000, 4_000)


class Metrics:
    """Every metric by its name without the prefix `stockgate_`.

    `labels(…)` is a look-up of a few microseconds: hot paths keep the child that it returns. A gauge without labels is
    shown from the start; one with labels once a process has set it.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        # The gateway's decisions.
        self.operations_total = self._counter("operations", "Operations answered.", "kind", "outcome")
        self.operation_seconds = self._histogram("operation_seconds", "From submit to answer.", SECONDS_BUCKETS, "kind")
        self.batch_operations = self._histogram("batch_operations", "Operations per script call.", BATCH_BUCKETS)
        self.batch_seconds = self._histogram("batch_seconds", "Duration of one script call.", SECONDS_BUCKETS)
        self.replays_total = self._counter("replays", "Operations that had been done before.", "kind")
        self.http_requests_total = self._counter("http_requests", "HTTP requests answered.", "route", "status")
        # The log, as leader, gateway or worker last saw it.
        self.log_head_m = self._gauge("log_head_m", "Last entry of the log.", "shard")
        self.confirmed_m = self._gauge("confirmed_m", "Last entry confirmed by the queue.", "shard")
        self.applied_m = self._gauge("applied_m", "Last entry applied in MySQL.", "shard")
        self.persist_lag_entries = self._gauge("persist_lag_entries", "Entries decided and not yet applied.", "shard")
        self.persist_lag_seconds = self._gauge("persist_lag_seconds", "Age of the oldest entry not applied.", "shard")
        self.unconfirmed_bytes = self._gauge("unconfirmed_bytes", "Bytes in the log not yet confirmed.", "shard")
        # Leaders and epochs.
        self.leader = self._gauge("leader", "1 where this process leads the shard.", "shard")
        self.leader_changes_total = self._counter("leader_changes", "Times this process became leader.", "shard")
        self.epoch = self._gauge("epoch", "Epoch of the shard.", "shard")
        self.epochs_opened_total = self._counter("epochs_opened", "Epochs this process opened.", "shard")
        self.stale_entries_total = self._counter("stale_entries", "Entries of closed epochs without effect.", "shard")
        # The persist worker.
        self.worker_batch_events = self._histogram(
            "worker_batch_events", "Events per transaction.", WORKER_BATCH_BUCKETS
        )
        self.worker_duplicates_total = self._counter("worker_duplicates", "Entries that were applied before.")
        self.worker_skipped_term_total = self._counter("worker_skipped_term", "Messages of an older term.")
        self.held_keys = self._gauge("held_keys", "Keys held until an operator decides.", "shard")
        self.parked_events = self._gauge("parked_events", "Events kept aside for held keys.", "shard")
        self.worker_alarm = self._gauge(
            "worker_alarm", "1 while the persist worker reports this alarm.", "shard", "alarm"
        )
        # Every process.
        self.dangerous_settings = self._gauge(
            "dangerous_settings", "Settings of a store that keep this process from being ready.", "store"
        )
        # The reconciler.
        self.reconcile_keys = self._gauge("reconcile_keys", "Keys by class in the last full round.", "shard", "class")
        self.drift_found_total = self._counter("drift_found", "Keys whose stores were proven to differ.")
        self.drift_repaired_total = self._counter("drift_repaired", "Keys corrected.")

    def render(self) -> bytes:
        """The metrics in Prometheus' text format, of content type `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="stockgate", registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace="stockgate", registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace="stockgate", registry=self.registry, buckets=buckets)
