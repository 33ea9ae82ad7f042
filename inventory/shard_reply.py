"""A shard as operators read it: one reading of the stores as the body of `/ops/status` and of `stockgate status`."""

import msgspec

from inventory.reconcile_tasks import TaskView
from inventory.status import ShardReading


class LeaderReply(msgspec.Struct):
    """`term`: how often the shard's leader has changed; `present`: some process leads; `here`: the one that answered."""

    term: int | None
    present: bool | None
    here: bool


class ComparisonReply(msgspec.Struct):
    """What the reconciler's last periodic pass saw, as numbers of keys; `compared_ms` is UTC epoch ms."""

    cold: int
    in_flight: int
    healthy: int
    drifted: int
    lost: int
    stuck: int
    detail: str
    epoch: int
    compared_ms: int


class ShardReply(msgspec.Struct):
    """One shard. Lags are entries and seconds; null where the store that knows could not be asked, see `missing`."""

    shard: int
    mode: str | None
    epoch: int | None
    since_ms: int | None
    term: int | None
    leader: LeaderReply
    gateways: int | None
    queue_depth: int | None
    worker_attached: bool | None
    log_head_m: int | None
    confirmed_m: int | None
    applied_m: int | None
    persist_lag_entries: int | None
    persist_lag_seconds: float | None
    unconfirmed_bytes: int | None
    fenced: bool | None
    held_keys: int | None
    parked_events: int | None
    stale_entries: int | None
    drift_found: int | None
    drift_repaired: int | None
    keys: ComparisonReply | None
    rebuild_wanted: bool | None
    alarm: str
    alarm_detail: str
    missing: list[str]
    """Of `mysql`, `redis`, `rabbitmq`: what did not answer."""


def shard_reply(shard: int, reading: ShardReading, *, leads: bool) -> ShardReply:
    """The body for one shard's reading."""
    row, log, troubles = reading.row, reading.log, reading.troubles
    return ShardReply(
        shard=shard,
        mode=row and row.mode,
        epoch=row and row.epoch,
        since_ms=row and row.since_ms,
        term=row and row.term,
        leader=LeaderReply(row and row.term, reading.leader_present, leads),
        gateways=reading.gateways,
        queue_depth=reading.queue_depth,
        worker_attached=reading.worker_attached,
        log_head_m=log and log.head_m,
        confirmed_m=log and log.confirmed_m,
        applied_m=row and row.applied_m,
        persist_lag_entries=log and log.lag_entries,
        persist_lag_seconds=log and log.lag_seconds,
        unconfirmed_bytes=log and log.unconfirmed_bytes,
        fenced=log and log.fenced,
        held_keys=troubles and troubles.held_keys,
        parked_events=troubles and troubles.parked_events,
        stale_entries=troubles and troubles.stale_entries,
        drift_found=troubles and troubles.drift_found,
        drift_repaired=troubles and troubles.drift_repaired,
        keys=_comparison(reading.comparison),
        rebuild_wanted=None if row is None else bool(row.rebuild_wanted),
        alarm=row.alarm if row else "",
        alarm_detail=row.alarm_detail if row else "",
        missing=reading.missing,
    )


def _comparison(seen: TaskView | None) -> ComparisonReply | None:
    if seen is None:
        return None
    return ComparisonReply(
        seen.cold,
        seen.in_flight,
        seen.healthy,
        seen.drifted,
        seen.lost,
        seen.stuck,
        seen.detail,
        seen.epoch,
        seen.finished_ms,
    )
