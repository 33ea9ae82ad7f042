"""The metrics of one process, on a registry of its own: nothing global, so that two may live in one test.

Labels are shards, kinds, outcomes, routes, stores, codes of failures: sets that the code bounds. Inventory keys, orders,
tenants, voucher codes and names of API keys are never labels. `observability/` draws them and raises alarms on them, and a
test there fails for a name that does not exist here.
"""

import asyncio
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.errors import StockgateError, Store, failure_code
from kernel.tallies import Tallies, Timings, ToldCounter

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

SECONDS_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DELAY_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
BATCH_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WORKER_BATCH_BUCKETS: Final = (1, 5, 10, 50, 100, 250, 500, 1_000, 2_000, 4_000)

MODES: Final = ("hot", "db", "opening")
LOOP_LOOK_S: Final = 0.25
"""How often a process looks at how late its event loop is."""


class Metrics:
    """Every metric by its name without the prefix `stockgate_`.

    `labels(…)` is a look-up of a few microseconds: hot paths keep the child that it returns. A gauge without labels is
    shown from the start; one with labels once a process has set it.
    """

    def __init__(self) -> None:  # noqa: PLR0915 - a list: nothing in it is decided
        self.registry = CollectorRegistry()
        # The process itself: memory, CPU and files by the driver's own names (`process_…`).
        ProcessCollector(registry=self.registry)
        self.process_info = self._gauge("process_info", "1; what this process is.", "role", "version")
        self.ready = self._gauge("ready", "1 while the process lacks nothing that it needs.")
        self.missing = self._gauge("missing", "1 for each thing that keeps the process from being ready.", "dependency")
        self.event_loop_delay_seconds = self._histogram(
            "event_loop_delay_seconds", "How late the event loop wakes who sleeps.", SECONDS_BUCKETS
        )
        self.api_keys_expiry_timestamp_seconds = self._gauge(
            "api_keys_expiry_timestamp_seconds", "When the next API key in force ends, UTC; +Inf where none does."
        )
        self.show_key_expiry(None)
        # The stores as this process finds them.
        self.store_errors_total = self._counter("store_errors", "Calls to a store that failed.", "store", "code")
        self.store_connections_total = self._counter("store_connections", "Connections made to a store.", "store")
        self.mysql_sessions_in_use = self._gauge("mysql_sessions_in_use", "Sessions in use, by pool.", "pool")
        self.mysql_sessions_max = self._gauge("mysql_sessions_max", "Sessions that a pool may have.", "pool")
        self.redis_memory_used_bytes = self._gauge("redis_memory_used_bytes", "Memory that Redis uses.", "shard")
        self.redis_memory_max_bytes = self._gauge(
            "redis_memory_max_bytes", "Memory that Redis may use; 0 = no bound.", "shard"
        )
        self.redis_persistence_ok = self._gauge(
            "redis_persistence_ok", "1 while Redis can write its append-only file.", "shard"
        )
        # The gateway's requests and decisions.
        self.http_requests_total = self._tallies("http_requests", "HTTP requests answered.", "route", "status")
        self.http_request_seconds = self._timings("http_request_seconds", "From head to answer of a request.", "route")
        self.operations_total = self._counter("operations", "Operations answered.", "kind", "outcome")
        self.operation_seconds = self._timings("operation_seconds", "From submit to answer.", "kind")
        self.replays_total = self._counter("replays", "Operations that had been done before.", "kind")
        self.open_operations = self._gauge("open_operations", "Operations that were not answered yet.")
        self.queued_operations = self._gauge("queued_operations", "Operations that wait for their turn.", "line")
        self.batch_operations = self._histogram("batch_operations", "Operations per script call.", BATCH_BUCKETS)
        self.batch_seconds = self._histogram("batch_seconds", "Duration of one script call.", SECONDS_BUCKETS)
        self.naming_seconds = self._histogram(
            "naming_seconds", "From a call's reply until its entry is named.", SECONDS_BUCKETS
        )
        self.namings_missed_total = ToldCounter(
            "stockgate_namings_missed", "Entries that were asked for because no naming of them came.", self.registry
        )
        # The log, as leader, gateway or worker last saw it.
        self.shard_hot = self._gauge("shard_hot", "1 while the shard's row says that Redis decides.", "shard")
        self.shard_mode = self._gauge("shard_mode", "1 for the mode that the shard's row has.", "shard", "mode")
        self.fenced = self._gauge("fenced", "1 while the head forbids decisions.", "shard")
        self.log_head_m = self._gauge("log_head_m", "Last entry of the log.", "shard")
        self.confirmed_m = self._gauge("confirmed_m", "Last entry confirmed by the queue.", "shard")
        self.applied_m = self._gauge("applied_m", "Last entry applied in MySQL.", "shard")
        self.persist_lag_entries = self._gauge("persist_lag_entries", "Entries decided and not yet applied.", "shard")
        self.persist_lag_seconds = self._gauge("persist_lag_seconds", "Age of the oldest entry not applied.", "shard")
        self.unconfirmed_bytes = self._gauge("unconfirmed_bytes", "Bytes in the log not yet confirmed.", "shard")
        self.unconfirmed_bytes_max = self._gauge(
            "unconfirmed_bytes_max", "Unconfirmed bytes above which operations hear 503.", "family"
        )
        # Leaders and epochs.
        self.leader = self._gauge("leader", "1 where this process leads the shard.", "shard")
        self.leader_changes_total = self._counter("leader_changes", "Times this process became leader.", "shard")
        self.term = self._gauge("term", "Term of the shard.", "shard")
        self.epoch = self._gauge("epoch", "Epoch of the shard.", "shard")
        self.epochs_opened_total = self._counter("epochs_opened", "Epochs this process opened.", "shard")
        self.resends_total = self._counter("resends", "Times entries were published again.", "shard")
        self.clock_skew_seconds = self._gauge("clock_skew_seconds", "Redis' clock less MySQL's.", "shard")
        self.stale_entries_total = self._counter("stale_entries", "Entries of closed epochs without effect.", "shard")
        # The persist worker.
        self.worker_batch_events = self._histogram(
            "worker_batch_events", "Events per transaction.", WORKER_BATCH_BUCKETS
        )
        self.worker_batch_seconds = self._histogram(
            "worker_batch_seconds", "From a batch gathered until it is committed.", SECONDS_BUCKETS
        )
        self.worker_delay_seconds = self._histogram(
            "worker_delay_seconds", "From decision to commit, of the last event of a batch.", DELAY_BUCKETS
        )
        self.worker_waiting_messages = self._gauge(
            "worker_waiting_messages", "Messages that wait for an entry before them.", "shard"
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
        self.reconcile_pass_timestamp_seconds = self._gauge(
            "reconcile_pass_timestamp_seconds", "When the last full round ended, UTC.", "shard"
        )
        self.stuck_keys = self._gauge("stuck_keys", "Keys in flight that do not move, in the last full round.", "shard")
        self.drift_found_total = self._counter("drift_found", "Keys whose stores were proven to differ.", "class")
        self.drift_repaired_total = self._counter(
            "drift_repaired", "Keys corrected, and rebuilds asked for lost ones.", "class"
        )
        self.audit_violations = self._gauge("audit_violations", "What the last audit found.", "shard", "check")
        self.audit_timestamp_seconds = self._gauge(
            "audit_timestamp_seconds", "When the last complete audit ended, UTC.", "shard"
        )

    def describe(self, role: str) -> None:
        """Say what this process is: `gateway`, `leader`, `persist-worker`, `reconciler`."""
        self.process_info.labels(role, version("stockgate")).set(1)

    def show_readiness(self, missing: Mapping[str, str]) -> None:
        """Show what is missing now, by dependency, and no more what was."""
        self.ready.set(0 if missing else 1)
        self.missing.clear()
        for dependency in missing:
            self.missing.labels(dependency).set(1)

    def show_key_expiry(self, next_expiry_ms: int | None) -> None:
        """Show when the next API key ends, UTC epoch ms; None where none does."""
        self.api_keys_expiry_timestamp_seconds.set(float("inf") if next_expiry_ms is None else next_expiry_ms / 1000)

    def begin_failures(self, store: Store, codes: Iterable[str]) -> None:
        """Show failures of a store from 0 on: an increase from nothing to 1 would be none to Prometheus."""
        for code in ("NOT_EXECUTED", "UNKNOWN", *codes):
            self.store_errors_total.labels(store, code)

    def count_failure(self, store: Store, failure: StockgateError) -> None:
        """Count a failure at a store's door."""
        self.store_errors_total.labels(store, failure_code(failure)).inc()

    def show_mode(self, shard: int, mode: str) -> None:
        """Show who decides: `hot` Redis, `db` MySQL, `opening` nobody."""
        self.shard_hot.labels(shard).set(1 if mode == "hot" else 0)
        for other in MODES:
            self.shard_mode.labels(shard, other).set(1 if other == mode else 0)

    def forget_head(self, shard: int) -> None:
        """Show nothing more of what only Redis knows of a shard: what was seen last is not how it is now."""
        for gauge in (
            self.redis_memory_used_bytes,
            self.redis_memory_max_bytes,
            self.redis_persistence_ok,
            self.fenced,
            self.log_head_m,
            self.confirmed_m,
            self.persist_lag_entries,
            self.persist_lag_seconds,
            self.unconfirmed_bytes,
        ):
            gauge.remove(str(shard))

    def forget_shard(self, shard: int) -> None:
        """Show nothing more of a shard that this process led."""
        self.forget_head(shard)
        for gauge in (self.shard_hot, self.term, self.epoch, self.applied_m, self.held_keys, self.clock_skew_seconds):
            gauge.remove(str(shard))
        for mode in MODES:
            self.shard_mode.remove(str(shard), mode)

    async def watch_loop(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """Measure for ever how late this event loop is; ends only by cancellation."""
        while True:
            began = clock.monotonic()
            await asyncio.sleep(LOOP_LOOK_S)
            self.event_loop_delay_seconds.observe(max(0.0, clock.monotonic() - began - LOOP_LOOK_S))

    def render(self) -> bytes:
        """The metrics in Prometheus' text format, of content type `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace="stockgate", registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace="stockgate", registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace="stockgate", registry=self.registry, buckets=buckets)

    def _tallies(self, name: str, text: str, *labels: str) -> Tallies:
        return Tallies(f"stockgate_{name}", text, labels, self.registry)

    def _timings(self, name: str, text: str, *labels: str) -> Timings:
        return Timings(f"stockgate_{name}", text, labels, SECONDS_BUCKETS, self.registry)
