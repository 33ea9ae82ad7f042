"""Whether this process lives, whether it can serve, and what it has counted."""

from typing import Final

import msgspec

from gateway.call import Call, State
from gateway.operators import SHARD
from gateway.replies import JSON, Reply, encode
from inventory.status import LogStatus, read_log_status
from kernel.errors import StockgateError, StoreRefused
from kernel.metrics import CONTENT_TYPE, Metrics

METRICS_TEXT: Final = (b"content-type", CONTENT_TYPE.encode())


class LiveReply(msgspec.Struct):
    """The process answers."""

    live: bool


class ReadyReply(msgspec.Struct):
    """`missing`: what is not there, and why."""

    ready: bool
    missing: dict[str, str]


async def live(_call: Call) -> Reply:
    """GET /health/live."""
    return Reply(200, encode(LiveReply(live=True)))


async def ready(call: Call) -> Reply:
    """GET /health/ready: 503 while any dependency is missing, with the reason for each."""
    missing = await missing_dependencies(call.state)
    return Reply(503 if missing else 200, encode(ReadyReply(not missing, missing)), (JSON,))


async def missing_dependencies(state: State) -> dict[str, str]:
    """What keeps this process from serving everything, by dependency."""
    missing: dict[str, str] = {}
    if state["lifecycle"].draining:
        missing["gateway"] = "shutting down"
    if state["keys"].load_error:
        missing["api_keys"] = state["keys"].load_error
    watch = state["watch"]
    if watch.failure is not None:
        missing["mysql"] = str(watch.failure)
    elif watch.row is None:
        missing["mysql"] = "the shard's row has not been read yet"
    elif watch.mode == "db":
        # MySQL decides: that another store is away is why, perhaps, and keeps nobody from being served.
        found = state["settings_watch"].missing().items()
        return missing | {name: why for name, why in found if name.startswith("mysql.")}
    elif not watch.hot_epoch:
        missing["shard"] = f"mode {watch.row.mode}: nobody decides"
    try:
        await state["redis"].command("PING")
    except StockgateError as error:
        missing["redis"] = str(error)
    return missing | state["settings_watch"].missing()


async def metrics(call: Call) -> Reply:
    """GET /metrics of the process that took the call. Gauges are read anew, so that every gateway shows the same."""
    looked = Looked(call.state)
    await looked.refresh()
    call.state["metrics"].show_readiness(looked.missing)
    return Reply(200, call.state["metrics"].render(), (METRICS_TEXT,))


class Looked:
    """What the process knows only by asking, for its metrics and its health: as it was at the last `refresh`."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.missing: dict[str, str] = {}
        """As `missing_dependencies` says."""

    async def refresh(self) -> None:
        """Ask anew; never raises for a store's trouble."""
        state = self._state
        self.missing = await missing_dependencies(state)
        state["metrics"].show_key_expiry(state["keys"].next_expiry_ms)
        row = state["watch"].row
        if row is not None:
            gauges, shard = state["metrics"], str(SHARD)
            gauges.show_mode(SHARD, row.mode)
            gauges.epoch.labels(shard).set(row.epoch)
            gauges.term.labels(shard).set(row.term)
            gauges.applied_m.labels(shard).set(row.applied_m)
        try:
            log = await read_log_status(state["redis"], row) if row is not None else None
            if log is None:
                state["metrics"].forget_head(SHARD)
            else:
                _set_log(state["metrics"], str(SHARD), log)
            await _read_server(state)
        except StockgateError:
            # That Redis is away is what readiness is for.
            state["metrics"].forget_head(SHARD)


async def _read_server(state: State) -> None:
    """What Redis says of its memory and of its file. An account that may not ask shows nothing of it."""
    try:
        told: bytes = await state["redis"].command("INFO", "memory", "persistence")
    except StoreRefused:
        return
    fields = dict(line.split(":", 1) for line in told.decode().splitlines() if ":" in line)
    gauges, shard = state["metrics"], str(SHARD)
    gauges.redis_memory_used_bytes.labels(shard).set(int(fields["used_memory"]))
    gauges.redis_memory_max_bytes.labels(shard).set(int(fields["maxmemory"]))
    writes = fields["aof_enabled"] == "1" and fields.get("aof_last_write_status") == "ok"
    gauges.redis_persistence_ok.labels(shard).set(1 if writes else 0)


def _set_log(gauges: Metrics, shard: str, log: LogStatus) -> None:
    gauges.fenced.labels(shard).set(1 if log.fenced else 0)
    gauges.log_head_m.labels(shard).set(log.head_m)
    gauges.confirmed_m.labels(shard).set(log.confirmed_m)
    gauges.unconfirmed_bytes.labels(shard).set(log.unconfirmed_bytes)
    gauges.persist_lag_entries.labels(shard).set(log.lag_entries)
    gauges.persist_lag_seconds.labels(shard).set(log.lag_seconds)
