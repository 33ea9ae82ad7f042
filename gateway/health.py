"""Whether this process lives, whether it can serve, and what it has counted."""

from typing import Final

import msgspec

from gateway.call import Call, State
from gateway.operators import SHARD
from gateway.replies import JSON, Reply, encode
from inventory.status import LogStatus, read_log_status
from kernel.errors import StockgateError
from kernel.metrics import CONTENT_TYPE

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
    elif not watch.hot_epoch:
        missing["shard"] = f"mode {watch.row.mode}: nobody decides"
    try:
        await state["redis"].command("PING")
    except StockgateError as error:
        missing["redis"] = str(error)
    return missing | state["settings_watch"].missing()


async def metrics(call: Call) -> Reply:
    """GET /metrics. The shard's gauges are read anew, so that every gateway shows the same."""
    await _refresh_gauges(call.state)
    return Reply(200, call.state["metrics"].render(), (METRICS_TEXT,))


async def _refresh_gauges(state: State) -> None:
    row = state["watch"].row
    if row is None:
        return
    shard = str(SHARD)
    gauges = state["metrics"]
    gauges.epoch.labels(shard).set(row.epoch)
    gauges.applied_m.labels(shard).set(row.applied_m)
    try:
        log = await read_log_status(state["redis"], row)
    except StockgateError:
        # A scrape shows what is known; that Redis is away is what readiness and alarms are for.
        return
    if log is not None:
        _set_log(state, shard, log)


def _set_log(state: State, shard: str, log: LogStatus) -> None:
    gauges = state["metrics"]
    gauges.log_head_m.labels(shard).set(log.head_m)
    gauges.confirmed_m.labels(shard).set(log.confirmed_m)
    gauges.unconfirmed_bytes.labels(shard).set(log.unconfirmed_bytes)
    gauges.persist_lag_entries.labels(shard).set(log.lag_entries)
    gauges.persist_lag_seconds.labels(shard).set(log.lag_seconds)
