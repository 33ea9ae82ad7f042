"""What the figures must reach: each target's name, where its figure stands in the result, and its bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one figure; `path` leads to it in the parts' results, `text` says it to people."""

    part: str
    path: Sequence[str]
    text: str
    unit: str
    bound: float
    kind: Literal["at least", "at most", "below"]

    def holds(self, value: float) -> bool:
        match self.kind:
            case "at least":
                return value >= self.bound
            case "at most":
                return value <= self.bound
            case "below":
                return value < self.bound


TARGETS = (
    Target("designs", ("seed_ratio",), "`ack=broker`, 1,000 keys: times the seed's design", "x", 3, "at least"),
    Target("designs", ("mysql_ratio",), "`ack=broker`, one hot key: times MySQL alone", "x", 4, "at least"),
    Target("constant", ("constant_share",), "`ack=redis`: share of a constant answer", "", 0.40, "at least"),
    Target("db", ("mysql_ratio",), "db mode, one hot key: times MySQL alone", "x", 2.5, "at least"),
    Target("operations", ("operations_per_s",), "calls of 100 operations: operations", "/s", 25_000, "at least"),
    Target("operations", ("script_share",), "calls of 100 operations: share of the script alone", "", 0.35, "at least"),
    Target("worker", ("events_per_s",), "persist worker alone on a backlog: events", "/s", 25_000, "at least"),
    Target(
        "sustained",
        ("kept_share",),
        "60 s at 90 % of capacity: share of the due orders answered by the end",
        "",
        0.99,
        "at least",
    ),
    Target("sustained", ("drain_s",), "60 s at 90 % of capacity: backlog empty after", "s", 5, "at most"),
    Target("memory", ("mb_after", "gateway-1"), "gateway after 1,000,000 operations", "MB", 200, "below"),
    Target("memory", ("mb_after", "persist-worker"), "worker after 1,000,000 operations", "MB", 200, "below"),
    Target(
        "memory", ("growth_mb_second_half", "gateway-1"), "gateway, growth from 500,000 to 1,000,000", "MB", 10, "below"
    ),
    Target(
        "memory",
        ("growth_mb_second_half", "persist-worker"),
        "worker, growth from 500,000 to 1,000,000",
        "MB",
        10,
        "below",
    ),
    Target("memory", ("open_orders", "bytes_each"), "Redis, for each open one-line order", "bytes", 600, "below"),
)


def figure(result: Mapping[str, Any], path: Sequence[str]) -> dict[str, float]:
    """The figure at a path, as median with lowest and highest; one that was measured once is all three."""
    found: Any = result
    for name in path:
        found = found[name]
    if isinstance(found, dict):
        return {name: float(found[name]) for name in ("median", "lowest", "highest")}
    return {"median": float(found), "lowest": float(found), "highest": float(found)}


def judge(parts: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each target whose part was measured, with its figure and whether the median reaches it."""
    judged: list[dict[str, Any]] = []
    for target in TARGETS:
        if target.part not in parts:
            continue
        value = figure(parts[target.part], target.path)
        judged.append(
            {
                "part": target.part,
                "text": target.text,
                "unit": target.unit,
                "target": f"{target.kind} {target.bound:g}",
                **value,
                "met": target.holds(value["median"]),
            }
        )
    return judged
