"""The dashboards as they are meant, and the JSON that Grafana imports: `python -m observability.dashboards` writes it.

One description gives every panel the same units, thresholds and words. Nobody edits the files in `grafana/` by hand: a
test compares them with what this makes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

FOLDER: Final = Path(__file__).parent / "grafana"

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS: Final = 24

Unit = Literal["reqps", "ops", "s", "bytes", "short", "percentunit", "none", "cps"]
Kind = Literal["timeseries", "stat"]

GREEN, ORANGE, RED = "green", "orange", "red"


@dataclass(frozen=True)
class Query:
    """One expression; `legend` is Grafana's template over the labels of what it gives."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. `orange` and `red` are the values from which on it is worth a look, or an act; `low` turns them round."""

    title: str
    description: str
    unit: Unit
    queries: Sequence[Query]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    orange: float | None = None
    red: float | None = None
    low: bool = False
    """Whether small values are the bad ones."""
    stacked: bool = False
    signed: bool = False
    """Whether values may lie below 0."""


@dataclass(frozen=True)
class Row:
    """Panels under a heading, from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Dashboard:
    """One page. `name` is the file's and the page's address."""

    name: str
    title: str
    description: str
    rows: Sequence[Row]


def quantiles(metric: str, by: str = "") -> list[Query]:
    """The median, the 95th and the 99th of a hundred."""
    return [
        Query(quantile(number, metric, by), f"{name} {{{{{by}}}}}".strip() if by else name)
        for number, name in ((0.5, "half"), (0.95, "95 %"), (0.99, "99 %"))
    ]


def quantile(number: float, metric: str, by: str = "") -> str:
    """A quantile of a histogram over all processes, for each value of the label `by`."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({number}, sum by ({labels}) (rate({metric}_bucket[$__rate_interval])))"


def per_second(metric: str, by: str, selector: str = "") -> str:
    """How often a second, for each value of the labels `by`."""
    return f"sum by ({by}) (rate({metric}{selector}[$__rate_interval]))"


def mean(metric: str) -> str:
    """The mean of a histogram's values."""
    return f"sum(rate({metric}_sum[$__rate_interval])) / sum(rate({metric}_count[$__rate_interval]))"


ORDERS: Final = Dashboard(
    "stockgate-orders",
    "Stockgate: order traffic",
    "What order services ask, what they are told, and how long it takes.",
    [
        Row(
            "Now",
            [
                Panel(
                    "Requests",
                    "HTTP requests answered per second, by all gateways together.",
                    "reqps",
                    [Query("sum(rate(stockgate_http_requests_total[$__rate_interval]))", "requests")],
                    kind="stat",
                    width=6,
                    height=4,
                ),
                Panel(
                    "Not served",
                    "Share of requests answered with 5xx. The caller repeats with the same id; above one in a hundred it is an incident.",
                    "percentunit",
                    [
                        Query(
                            '(sum(rate(stockgate_http_requests_total{status=~"5.."}[$__rate_interval])) or vector(0))'
                            " / sum(rate(stockgate_http_requests_total[$__rate_interval]))",
                            "5xx",
                        )
                    ],
                    kind="stat",
                    width=6,
                    height=4,
                    orange=0.001,
                    red=0.01,
                ),
                Panel(
                    "99 of 100 operations take at most",
                    "From submit to answer, its confirmation by the broker included (ack=broker).",
                    "s",
                    [Query(quantile(0.99, "stockgate_operation_seconds"), "99 %")],
                    kind="stat",
                    width=6,
                    height=4,
                    orange=0.25,
                    red=1.0,
                ),
                Panel(
                    "Short stock",
                    "Reservations per second that were refused because there is not enough. No fault, but sales people want to know.",
                    "ops",
                    [
                        Query(
                            'sum(rate(stockgate_operations_total{outcome="INSUFFICIENT_STOCK"}[$__rate_interval])) or vector(0)',
                            "refused",
                        )
                    ],
                    kind="stat",
                    width=6,
                    height=4,
                ),
            ],
        ),
        Row(
            "Requests",
            [
                Panel(
                    "Requests by route",
                    "HTTP requests answered per second.",
                    "reqps",
                    [Query(per_second("stockgate_http_requests_total", "route"), "{{route}}")],
                    stacked=True,
                ),
                Panel(
                    "Answers by status",
                    "2xx is done, 4xx is refused with nothing changed, 5xx says in `outcome` what is known.",
                    "reqps",
                    [Query(per_second("stockgate_http_requests_total", "status"), "{{status}}")],
                    stacked=True,
                ),
                Panel(
                    "Time of a request, 99 of 100",
                    "From the request's head to its answer, by route.",
                    "s",
                    [Query(quantile(0.99, "stockgate_http_request_seconds", "route"), "{{route}}")],
                    orange=0.25,
                    red=1.0,
                ),
            ],
        ),
        Row(
            "Operations",
            [
                Panel(
                    "Operations by kind",
                    "Operations answered per second: one request may hold up to 500.",
                    "ops",
                    [Query(per_second("stockgate_operations_total", "kind"), "{{kind}}")],
                    stacked=True,
                ),
                Panel(
                    "Not done, by outcome",
                    "Operations per second that were refused or failed. INSUFFICIENT_STOCK is business; UNAVAILABLE, OVERLOADED and SHARD_CLOSED are not.",
                    "ops",
                    [Query(per_second("stockgate_operations_total", "outcome", '{outcome!="DONE"}'), "{{outcome}}")],
                    stacked=True,
                ),
                Panel(
                    "Replays",
                    "Share of operations that had been done before. Some are always there; many say that callers time out.",
                    "percentunit",
                    [
                        Query(
                            "sum by (kind) (rate(stockgate_replays_total[$__rate_interval]))"
                            " / sum by (kind) (rate(stockgate_operations_total[$__rate_interval]))",
                            "{{kind}}",
                        )
                    ],
                    orange=0.1,
                    red=0.5,
                ),
                Panel(
                    "Time of an operation, 99 of 100",
                    "From submit to answer, by kind.",
                    "s",
                    [Query(quantile(0.99, "stockgate_operation_seconds", "kind"), "{{kind}}")],
                    orange=0.25,
                    red=1.0,
                ),
                Panel(
                    "Operations waiting",
                    "Not answered yet, and of these: waiting for their turn at the script (call) or at MySQL (look_up). Bounds: 32,768 open, 8,192 in each line.",
                    "short",
                    [
                        Query("sum(stockgate_open_operations)", "open"),
                        Query("sum by (line) (stockgate_queued_operations)", "{{line}}"),
                    ],
                    orange=2_000,
                    red=8_000,
                ),
                Panel(
                    "Operations in one script call",
                    "The batch grows under load by itself, up to 512: that is what makes the system quick.",
                    "short",
                    [
                        Query(mean("stockgate_batch_operations"), "mean"),
                        Query(quantile(0.99, "stockgate_batch_operations"), "99 %"),
                    ],
                ),
            ],
        ),
        Row(
            "Where the time goes",
            [
                Panel(
                    "Script call",
                    "Redis: from sending a batch to reading its reply.",
                    "s",
                    quantiles("stockgate_batch_seconds"),
                    width=12,
                    orange=0.05,
                    red=0.5,
                ),
                Panel(
                    "Waiting for the naming",
                    "RabbitMQ and the leader: from a call's reply until its entry is confirmed and named.",
                    "s",
                    quantiles("stockgate_naming_seconds"),
                    width=12,
                    orange=0.1,
                    red=1.0,
                ),
            ],
        ),
    ],
)

FLOW: Final = Dashboard(
    "stockgate-flow",
    "Stockgate: Redis, RabbitMQ, MySQL",
    "How decisions travel: the log, its leader, the persist worker, and whether the stores agree.",
    [
        Row(
            "Now",
            [
                Panel(
                    "Shard is open",
                    "1 while Redis decides and nobody has fenced it. 0: reserving hears 503.",
                    "none",
                    [
                        Query(
                            "min by (shard) (stockgate_shard_hot) * (1 - max by (shard) (stockgate_fenced))",
                            "shard {{shard}}",
                        )
                    ],
                    kind="stat",
                    width=4,
                    height=4,
                    orange=1,
                    red=0,
                    low=True,
                ),
                Panel(
                    "Leaders",
                    "Processes that lead the shard: exactly one, but for moments.",
                    "none",
                    [Query("sum by (shard) (stockgate_leader)", "shard {{shard}}")],
                    kind="stat",
                    width=4,
                    height=4,
                    orange=1,
                    red=0,
                    low=True,
                ),
                Panel(
                    "Epoch and term",
                    "The epoch grows by each rebuild of the shard and each switch of its mode, the term by each leader.",
                    "none",
                    [
                        Query("max by (shard) (stockgate_epoch)", "epoch of shard {{shard}}"),
                        Query("max by (shard) (stockgate_term)", "term"),
                        Query('max by (shard) (stockgate_shard_mode{mode="db"})', "1: db mode, MySQL decides"),
                    ],
                    kind="stat",
                    width=4,
                    height=4,
                ),
                Panel(
                    "Persist lag",
                    "Age of the oldest entry that MySQL does not have.",
                    "s",
                    [Query("max by (shard) (stockgate_persist_lag_seconds)", "shard {{shard}}")],
                    kind="stat",
                    width=4,
                    height=4,
                    orange=30,
                    red=300,
                ),
                Panel(
                    "Held keys",
                    "Keys that wait for an operator: they answer KEY_FROZEN.",
                    "none",
                    [Query("max by (shard) (stockgate_held_keys)", "shard {{shard}}")],
                    kind="stat",
                    width=4,
                    height=4,
                    orange=1,
                    red=10,
                ),
                Panel(
                    "Audit violations",
                    "What the last audit found over all checks. It must be 0.",
                    "none",
                    [Query("sum by (shard) (max by (shard, check) (stockgate_audit_violations))", "shard {{shard}}")],
                    kind="stat",
                    width=4,
                    height=4,
                    orange=1,
                    red=1,
                ),
            ],
        ),
        Row(
            "The log",
            [
                Panel(
                    "Entries per second",
                    "Decided in Redis, confirmed by RabbitMQ, applied in MySQL: the three follow each other.",
                    "cps",
                    [
                        Query("max(rate(stockgate_log_head_m[$__rate_interval]))", "decided"),
                        Query("max(rate(stockgate_confirmed_m[$__rate_interval]))", "confirmed"),
                        Query("max(rate(stockgate_applied_m[$__rate_interval]))", "applied"),
                    ],
                ),
                Panel(
                    "Where entries wait",
                    "Decided and not confirmed: look at the leader and the broker. Confirmed and not applied: look at the persist worker.",
                    "short",
                    [
                        Query("max(stockgate_log_head_m - stockgate_confirmed_m)", "for the broker"),
                        Query("clamp_min(max(stockgate_confirmed_m - stockgate_applied_m), 0)", "for MySQL"),
                    ],
                    orange=5_000,
                    red=50_000,
                ),
                Panel(
                    "Persist lag",
                    "Age of the oldest entry that MySQL does not have. Answers do not wait for it; a rebuild does.",
                    "s",
                    [Query("max by (shard) (stockgate_persist_lag_seconds)", "shard {{shard}}")],
                    orange=30,
                    red=300,
                ),
                Panel(
                    "Unconfirmed bytes",
                    "Of the log; above the bound for a family its operations hear 503.",
                    "bytes",
                    [
                        Query("max by (shard) (stockgate_unconfirmed_bytes)", "shard {{shard}}"),
                        Query("max by (family) (stockgate_unconfirmed_bytes_max)", "bound for {{family}}"),
                    ],
                ),
                Panel(
                    "Leaders and epochs",
                    "Changes within an hour. Several leaders in a short time: a broker or a network that flaps.",
                    "short",
                    [
                        Query("sum(increase(stockgate_leader_changes_total[1h])) or vector(0)", "new leaders"),
                        Query("sum(increase(stockgate_epochs_opened_total[1h])) or vector(0)", "epochs opened"),
                        Query("sum(increase(stockgate_resends_total[1h])) or vector(0)", "entries sent again"),
                    ],
                    orange=5,
                    red=20,
                ),
                Panel(
                    "Clocks",
                    "Redis' clock less MySQL's. At 5 s the leader fences the shard.",
                    "s",
                    [Query("max by (shard) (stockgate_clock_skew_seconds)", "shard {{shard}}")],
                    orange=1,
                    red=5,
                    signed=True,
                ),
            ],
        ),
        Row(
            "The persist worker",
            [
                Panel(
                    "Events per second",
                    "Rows of the ledger: one entry holds the events of a whole batch.",
                    "cps",
                    [Query("sum(rate(stockgate_worker_batch_events_sum[$__rate_interval]))", "events")],
                ),
                Panel(
                    "Events in one transaction",
                    "Up to 2,000; many in each say that the worker is behind.",
                    "short",
                    [
                        Query(mean("stockgate_worker_batch_events"), "mean"),
                        Query(quantile(0.99, "stockgate_worker_batch_events"), "99 %"),
                    ],
                ),
                Panel(
                    "Time of a transaction",
                    "From a batch gathered until it is committed, with all repeats.",
                    "s",
                    quantiles("stockgate_worker_batch_seconds"),
                    orange=0.5,
                    red=2.5,
                ),
                Panel(
                    "From decision to commit",
                    "How old an event is when MySQL has it.",
                    "s",
                    quantiles("stockgate_worker_delay_seconds"),
                    orange=5,
                    red=30,
                ),
                Panel(
                    "Set aside",
                    "Held keys, their parked events, and messages that wait for an entry before them.",
                    "short",
                    [
                        Query("max(stockgate_held_keys)", "held keys"),
                        Query("max(stockgate_parked_events)", "parked events"),
                        Query("max(stockgate_worker_waiting_messages)", "messages behind a gap"),
                    ],
                    orange=1,
                    red=100,
                ),
                Panel(
                    "Without effect",
                    "Entries applied before, messages of an older term, entries of closed epochs. The first two are harmless.",
                    "cps",
                    [
                        Query("sum(rate(stockgate_worker_duplicates_total[$__rate_interval]))", "duplicates"),
                        Query("sum(rate(stockgate_worker_skipped_term_total[$__rate_interval]))", "older term"),
                        Query("sum(rate(stockgate_stale_entries_total[$__rate_interval]))", "stale"),
                    ],
                ),
                Panel(
                    "Alarms of the worker",
                    "Empty when all is well. Any but GAP stops the shard until somebody acts; GAP must heal within seconds.",
                    "none",
                    [Query("max by (shard, alarm) (stockgate_worker_alarm)", "shard {{shard}}: {{alarm}}")],
                    width=24,
                    height=5,
                    orange=1,
                    red=1,
                ),
            ],
        ),
        Row(
            "Do the stores agree?",
            [
                Panel(
                    "Keys by class",
                    "In the last full round: in_flight moves, drifted and lost are repaired, cold ones are not in Redis.",
                    "short",
                    [Query("sum by (class) (stockgate_reconcile_keys)", "{{class}}")],
                    stacked=True,
                ),
                Panel(
                    "Found and repaired within an hour",
                    "Keys whose stores were proven to differ. Any is worth an explanation.",
                    "short",
                    [
                        Query("sum by (class) (increase(stockgate_drift_found_total[1h]))", "{{class}} found"),
                        Query("sum by (class) (increase(stockgate_drift_repaired_total[1h]))", "{{class}} repaired"),
                    ],
                    orange=1,
                    red=10,
                ),
                Panel(
                    "Stuck keys",
                    "In flight, and MySQL's side does not move.",
                    "short",
                    [Query("max by (shard) (stockgate_stuck_keys)", "shard {{shard}}")],
                    orange=1,
                    red=10,
                ),
                Panel(
                    "Violations by check",
                    "Of the last audit, at most 100 a check.",
                    "short",
                    [Query("max by (check) (stockgate_audit_violations)", "{{check}}")],
                    width=16,
                    orange=1,
                    red=1,
                ),
                Panel(
                    "How old these answers are",
                    "Seconds since the last full round and the last complete audit.",
                    "s",
                    [
                        Query("time() - max(stockgate_reconcile_pass_timestamp_seconds)", "round"),
                        Query("time() - max(stockgate_audit_timestamp_seconds)", "audit"),
                    ],
                ),
            ],
        ),
    ],
)

PROCESSES: Final = Dashboard(
    "stockgate-processes",
    "Stockgate: processes and their stores",
    "Whether each process lives and is ready, what it uses, and what it hears from Redis, MySQL and RabbitMQ.",
    [
        Row(
            "Now",
            [
                Panel(
                    "Ready",
                    "1 while a process lacks nothing that it needs.",
                    "none",
                    [Query("stockgate_ready", "{{instance}}")],
                    kind="stat",
                    width=16,
                    height=4,
                    orange=1,
                    red=0,
                    low=True,
                ),
                Panel(
                    "Next API key ends in",
                    "Empty while no key in force has an end.",
                    "s",
                    [Query("min(stockgate_api_keys_expiry_timestamp_seconds < +Inf) - time()", "")],
                    kind="stat",
                    width=8,
                    height=4,
                    orange=14 * 86_400,
                    red=2 * 86_400,
                    low=True,
                ),
                Panel(
                    "Answers to Prometheus",
                    "1 while a process can be scraped.",
                    "none",
                    [Query('up{job=~"stockgate-.+"}', "{{instance}}")],
                    orange=1,
                    red=0,
                    low=True,
                ),
                Panel(
                    "What is missing",
                    "Empty when all is well: what keeps which process from being ready.",
                    "none",
                    [Query("stockgate_missing", "{{instance}}: {{dependency}}")],
                ),
                Panel(
                    "Dangerous settings",
                    "Settings of a store that keep a process from being ready; `stockgate doctor` says how to mend them.",
                    "short",
                    [Query("max by (instance, store) (stockgate_dangerous_settings)", "{{instance}}: {{store}}")],
                    orange=1,
                    red=1,
                ),
            ],
        ),
        Row(
            "What they use",
            [
                Panel(
                    "CPU",
                    "Share of one core; a process of ours uses one at most.",
                    "percentunit",
                    [Query('rate(process_cpu_seconds_total{job=~"stockgate-.+"}[$__rate_interval])', "{{instance}}")],
                    orange=0.8,
                    red=0.95,
                ),
                Panel(
                    "Memory",
                    "Resident bytes. It is flat once a process is warm.",
                    "bytes",
                    [Query('process_resident_memory_bytes{job=~"stockgate-.+"}', "{{instance}}")],
                    orange=200 * 1024 * 1024,
                    red=400 * 1024 * 1024,
                ),
                Panel(
                    "Event loop late, 99 of 100",
                    "How late a process wakes who sleeps. What is late here is late for every request.",
                    "s",
                    [Query(quantile(0.99, "stockgate_event_loop_delay_seconds", "instance"), "{{instance}}")],
                    orange=0.05,
                    red=0.25,
                ),
                Panel(
                    "Open files",
                    "Share of what the system allows: connections are files.",
                    "percentunit",
                    [
                        Query(
                            'process_open_fds{job=~"stockgate-.+"} / process_max_fds{job=~"stockgate-.+"}',
                            "{{instance}}",
                        )
                    ],
                    orange=0.5,
                    red=0.8,
                ),
                Panel(
                    "Running since",
                    "Seconds. One that stays small is started again and again.",
                    "s",
                    [Query('time() - process_start_time_seconds{job=~"stockgate-.+"}', "{{instance}}")],
                ),
                Panel(
                    "MySQL sessions",
                    "In use, by process and pool, as a share of what the pool may have.",
                    "percentunit",
                    [
                        Query(
                            "stockgate_mysql_sessions_in_use / stockgate_mysql_sessions_max",
                            "{{instance}}: {{pool}}",
                        )
                    ],
                    orange=0.8,
                    red=1.0,
                ),
            ],
        ),
        Row(
            "What they hear from the stores",
            [
                Panel(
                    "Failures by store and code",
                    "Calls per second that failed; empty when all is well. NOT_EXECUTED and UNKNOWN: away or silent; the rest is the server's own word.",
                    "cps",
                    [Query(per_second("stockgate_store_errors_total", "store, code") + " > 0", "{{store}} {{code}}")],
                ),
                Panel(
                    "Connections made",
                    "Per second. In quiet there are none: a steady rate is a store, or a network, that drops them.",
                    "cps",
                    [Query(per_second("stockgate_store_connections_total", "store"), "{{store}}")],
                ),
                Panel(
                    "Namings missed",
                    "Entries per second that a gateway had to ask for, because no naming came.",
                    "cps",
                    [Query(per_second("stockgate_namings_missed_total", "instance"), "{{instance}}")],
                ),
                Panel(
                    "Redis memory",
                    "Used, and the bound. Nothing is ever evicted: a full Redis refuses reservations.",
                    "bytes",
                    [
                        Query("max(stockgate_redis_memory_used_bytes)", "used"),
                        Query("max(stockgate_redis_memory_max_bytes)", "bound"),
                    ],
                    width=12,
                ),
                Panel(
                    "Redis can write its file",
                    "1 while the append-only file is on and written.",
                    "none",
                    [Query("min(stockgate_redis_persistence_ok)", "append-only file")],
                    width=12,
                    orange=1,
                    red=0,
                    low=True,
                ),
            ],
        ),
    ],
)

DASHBOARDS: Final = (ORDERS, FLOW, PROCESSES)


def as_json(dashboard: Dashboard) -> str:
    """The file that Grafana 10 and 11 import."""
    page = {
        "uid": dashboard.name,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["stockgate"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [
            {"type": "dashboards", "title": "Stockgate", "tags": ["stockgate"], "asDropdown": False, "keepTime": True}
        ],
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Prometheus",
                    "type": "datasource",
                    "query": "prometheus",
                    "refresh": 1,
                    "hide": 0,
                    "current": {},
                }
            ]
        },
        "panels": list(_panels(dashboard)),
    }
    return json.dumps(page, indent=2) + "\n"


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number = y = 0
    for row in dashboard.rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }
        y += 1
        x = line_height = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line_height = 0, y + line_height, 0
            number += 1
            yield _panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": panel.height})
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps = _threshold_steps(panel)
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": steps},
        "color": {"mode": "thresholds" if panel.kind == "stat" else "palette-classic"},
    }
    if panel.kind == "timeseries":
        if not panel.signed:
            defaults["min"] = 0
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 25 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if len(steps) > 1 and not panel.low else "off"},
        }
        options: dict[str, Any] = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    else:
        options = {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "auto",
            "justifyMode": "auto",
            "orientation": "auto",
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expr,
                "legendFormat": query.legend,
                "range": True,
                "editorMode": "code",
            }
            for index, query in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def _threshold_steps(panel: Panel) -> list[dict[str, Any]]:
    """From small to large, as Grafana wants them; the first colour has no lower end."""
    if panel.orange is None or panel.red is None:
        return [{"color": GREEN, "value": None}]
    if panel.low:
        middle = [{"color": ORANGE, "value": panel.red}] if panel.red > 0 else []
        return [{"color": RED, "value": None}, *middle, {"color": GREEN, "value": panel.orange}]
    middle = [{"color": ORANGE, "value": panel.orange}] if panel.orange < panel.red else []
    return [{"color": GREEN, "value": None}, *middle, {"color": RED, "value": panel.red}]


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(as_json(dashboard))


if __name__ == "__main__":
    main()
