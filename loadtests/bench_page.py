"""docs/performance.md, written from one run's result and never by hand: what was measured, on what, and how to read it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HOW_TO_READ = """\
## How to read it

**Only ratios mean something.** Requests per second depend on the machine, on its neighbours and on the hour. So the
targets of two systems alternate in short rounds (A B A B …), each round is compared with its neighbour, and the median
of these ratios counts; lowest and highest say how much they scatter. Before another system takes its turn, Stockgate's
backlog is empty: nobody pays for somebody else's work.

**What runs.** Everything on the same two cores: one gateway (which also leads the shard), one persist worker, one
reconciler, Redis, RabbitMQ, MariaDB, and `wrk` with one thread and 64 connections in a process of its own. Durability is
as delivered: quorum queue, commits synced to disk, append-only file synced every second. Each part has a fresh stack.

**What counts.** Only what was accepted: every request is a new order of one line, answered 201. One answer that is not,
one socket error, one process that died, and the part fails instead of giving a figure. After each part every unit that
was answered must have been taken, none more than was asked for, and `stockgate audit` must find nothing.

**The others.** *seed* is the design as such systems are first written: one script, one cache write and one confirmed
message for each request; a crash in between loses the event. *mysql* is one transaction of balance, ledger and
reservation for each request, on 32 connections. *constant* is the same HTTP server reading the same body and answering a
constant: what any server of this kind can do at most. They stand in `loadtests/baselines/`. *The script alone* is Redis
deciding 512 reserves a call, one connection, no HTTP, no log read by anybody.

**The minute at 90 %** is an open loop: orders have times at which they are due (exponential gaps, as independent callers
make them), and latency counts from that time and not from when a connection was free, so that waiting behind a slow
answer is not left out (coordinated omission). `wrk` keeps the schedule in its script: a generator in Python would eat so
much of the same two cores that the capacity measured a moment before would be gone.

**CPU per operation** is the figure to look at on a machine that others load as well: it hardly changes with what the
neighbours do. The worker's and MariaDB's work until the backlog is empty is in it.

`make bench` measures anew (at most 15 minutes), `make bench ARGS="all --page docs/performance.md"` writes this page, and
`make bench ARGS="cpu --quick"` runs one part shortly; `ARGS=--help` lists them. The exit code says whether the targets
were met.
"""


def page_of(result: Mapping[str, Any]) -> str:
    """The page for a result of `python -m loadtests.bench --json`."""
    parts: Mapping[str, Any] = result["parts"]
    lines = [
        "# Speed and memory",
        "",
        "Written by `loadtests/bench_page.py` from one run of `make bench`; do not edit.",
        "",
    ]
    if result["quick"]:
        lines += ["**A quick run: it shows that the measuring works, its figures mean nothing.**", ""]
    if "machine" in parts:
        lines += _machine(parts["machine"])
    lines += _targets(result)
    if "cpu" in parts:
        lines += _cpu(parts["cpu"])
    lines += _rates(parts)
    if "sustained" in parts:
        lines += _sustained(parts["sustained"])
    if "memory" in parts:
        lines += _memory(parts["memory"])
    return "\n".join([*lines, HOW_TO_READ])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    numbers = ["---"] + ["---:"] * (len(head) - 1)
    return [*(f"| {' | '.join(row)} |" for row in (head, numbers, *rows)), ""]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _range(figure: Mapping[str, float]) -> str:
    return f"{_number(figure['lowest'])} to {_number(figure['highest'])}"


def _machine(machine: Mapping[str, Any]) -> list[str]:
    fsync, versions = machine["fsync"], machine["versions"]
    return [
        (
            f"{machine['date']}, commit {machine['commit']}. {machine['cpu']}, {machine['cores_used']} of {machine['cores']} "
            f"cores used, {machine['memory_mib'] / 1024:.0f} GiB, Linux {machine['kernel']}, {machine['file_system']}; load "
            f"average before the run {machine['load_average_1m']:.1f} (a quiet machine shows less than 0.5)."
        ),
        "",
        (
            f"Disk: appending {fsync['block_bytes'] // 1024} KiB and `fdatasync` takes {fsync['median_us']:,} µs in the median, "
            f"{fsync['p99_us']:,} µs at p99 ({fsync['writes']:,} times)."
        ),
        "",
        ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
        "",
    ]


def _targets(result: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            target["text"],
            target["target"],
            f"{_number(target['median'])} {target['unit']}".strip(),
            _range(target),
            "not judged" if result["quick"] else "met" if target["met"] else "**missed**",
        )
        for target in result["targets"]
    ]
    lines = ["## Targets", "", *_table(("figure", "target", "median", "lowest to highest", "")[:5], rows)]
    for name, why in result["failed"].items():
        first_line = why.splitlines()[0]
        lines += [f"**Not measured**: {name}: {first_line}", ""]
    return lines


def _cpu(cpu: Mapping[str, Any]) -> list[str]:
    shares = cpu["core_shares"]
    ordered = sorted(cpu["us_per_operation"].items(), key=lambda each: (each[0] == "all", -each[1]["median"]))
    rows = [
        (name, _number(us["median"]), _range(us), f"{shares[name]['median']:.0%}" if name in shares else "")
        for name, us in ordered
    ]
    return [
        "## Where the time goes",
        "",
        (
            f"CPU per accepted reserve over 1,000 keys, `ack=broker`, at {cpu['per_s']['median']:,.0f}/s; others on the machine "
            f"took {shares['others']['median']:.0%} of a core meanwhile."
        ),
        "",
        *_table(("process", "µs per operation", "lowest to highest", "of a core"), rows),
    ]


def _rates(parts: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            f"{part}: {name}",
            _number(rates["per_s"]["median"]),
            _range(rates["per_s"]),
            _number(rates["p50_ms"]["median"]),
            _number(rates["p99_ms"]["median"]),
        )
        for part in ("designs", "constant", "db", "operations")
        if part in parts
        for name, rates in parts[part]["rates"].items()
        if name != "script alone"
    ]
    if not rows:
        return []
    lines = ["## What the ratios are made of", ""]
    lines += _table(("round", "operations/s", "lowest to highest", "p50 ms", "p99 ms"), rows)
    if "operations" in parts:
        alone = parts["operations"]["rates"]["script alone"]["per_s"]
        lines += [f"The script alone: {alone['median']:,.0f} operations/s ({_range(alone)}).", ""]
    return lines


def _sustained(sustained: Mapping[str, Any]) -> list[str]:
    latency = sustained["latency_ms"]
    rows = [
        (name, *(_number(latency[f"{kind}_p{each}"]) for each in ("50", "90", "99", "99_9", "100")))
        for name, kind in (("from the intended time", "corrected"), ("sent late by", "late"))
    ]
    backlog = sustained["backlog_entries"] or {"median": 0, "highest": 0}
    return [
        "## A minute at 90 %",
        "",
        (
            f"Capacity {sustained['capacity_per_s']:,}/s in a closed loop; {sustained['asked_per_s']:,}/s were due "
            f"for {sustained['seconds']:.0f} s, and {sustained['kept_share']:.1%} of them answered by the end. The backlog was {backlog['median']:.0f} "
            f"entries in the median and {backlog['highest']:.0f} at most, and empty {sustained['drain_s']:.1f} s after the end."
        ),
        "",
        *_table(("latency, ms", "p50", "p90", "p99", "p99.9", "highest"), rows),
    ]


def _memory(memory: Mapping[str, Any]) -> list[str]:
    orders = memory["open_orders"]
    rows = [(name, _number(mb)) for name, mb in sorted(memory["mb_after"].items())]
    return [
        "## Memory",
        "",
        f"Resident after {memory['operations']:,} operations, half of them reserves and half confirms:",
        "",
        *_table(("process", "MB"), rows),
        (
            f"An open one-line order takes {orders['bytes_each']:.0f} bytes of Redis ({orders['orders']:,} measured); with the "
            f"log, whose length is bounded ({orders['log_bytes'] / 1e6:.0f} MB then), {orders['bytes_each_with_log']:.0f}."
        ),
        "",
    ]
