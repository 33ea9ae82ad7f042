"""Draws the dashboards as pictures from a Prometheus: `python -m observability.draw --help`.

What is drawn are the files that Grafana imports, panel by panel and query by query, so a picture shows what a person would
see there. Without `--prometheus` it starts one of its own beside a running stack and watches that for a while.
"""

import asyncio
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer
from matplotlib import dates, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from observability.dashboards import FOLDER
from observability.scrape import Line, Prometheus, PrometheusServer, read_stack

PICTURES: Final = Path(__file__).parent / "pictures"

RATE_VARIABLE: Final = "$__rate_interval"
COLUMNS: Final = 24
COLUMN_INCHES, ROW_INCHES = 0.72, 0.36
LEGEND_LINES_MAX: Final = 8
POINTS: Final = 240
DAY_S: Final = 86_400
"""matplotlib counts days since 1970."""

BACKGROUND, PANEL, TEXT, FAINT = "#f4f5f5", "#ffffff", "#24292e", "#8a9199"
COLOURS: Final = {"green": "#37872d", "orange": "#e0752d", "red": "#c4162a"}
LINES: Final = (
    "#3274d9", "#e0752d", "#37872d", "#a352cc", "#c4162a", "#0a9396", "#b5890c", "#705da0", "#7a5c3e", "#5195ce",
    "#e24d42", "#629e51",
)  # fmt: skip


@dataclass
class Drawn:
    """One panel with what its queries gave."""

    panel: Mapping[str, Any]
    start: float
    """Of the time shown, UTC seconds."""
    end: float
    lines: list[tuple[str, Line]] = field(default_factory=list[tuple[str, Line]])
    answered: int = 0
    """How many of its queries gave anything."""

    @property
    def title(self) -> str:
        """The panel's title."""
        return self.panel["title"]


def read_dashboard(path: Path) -> dict[str, Any]:
    """A dashboard as Grafana has it."""
    return json.loads(path.read_text())


def legend_of(template: str, labels: Mapping[str, str]) -> str:
    """Grafana's legend: `{{label}}` is the label's value."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda name: labels.get(name[1], ""), template)


async def read_panels(
    prometheus: Prometheus, dashboard: Mapping[str, Any], start: float, end: float, rate_interval: str
) -> list[Drawn]:
    """Ask what every panel of a dashboard asks, in the panels' order; `rate_interval` stands for Grafana's own."""
    panels: list[Drawn] = []
    step = max((end - start) / POINTS, 0.05)
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        drawn = Drawn(panel, start, end)
        for target in panel["targets"]:
            expression = target["expr"].replace(RATE_VARIABLE, rate_interval)
            lines = await prometheus.over(expression, start, end, step)
            drawn.answered += bool(lines)
            for line in lines:
                drawn.lines.append((legend_of(target["legendFormat"], line.labels), line))
        panels.append(drawn)
    return panels


# --- drawing ----------------------------------------------------------------------------------------------------------


def draw(dashboard: Mapping[str, Any], panels: Sequence[Drawn], path: Path) -> None:
    """Draw one dashboard into a PNG, its panels where Grafana has them."""
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"]) + 2
    figure = Figure(figsize=(COLUMNS * COLUMN_INCHES, rows * ROW_INCHES), dpi=100, facecolor=BACKGROUND)

    def box(place: Mapping[str, int]) -> tuple[float, float, float, float]:
        """Left, bottom, width and height in the figure's fractions; two rows at the top are the page's title."""
        left, top = place["x"] / COLUMNS, (place["y"] + 2) / rows
        return left, 1 - top - place["h"] / rows, place["w"] / COLUMNS, place["h"] / rows

    figure.text(0.008, 1 - 0.75 / rows, dashboard["title"], fontsize=17, color=TEXT, weight="bold", va="center")
    figure.text(0.008, 1 - 1.6 / rows, dashboard["description"], fontsize=10.5, color=FAINT, va="center")
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            left, bottom, _, height = box(panel["gridPos"])
            figure.text(
                left + 0.008, bottom + height / 2, panel["title"], fontsize=12, color=TEXT, va="center", weight="bold"
            )
    for drawn in panels:
        left, bottom, width, height = box(drawn.panel["gridPos"])
        gap_x, gap_y = 0.05 / COLUMNS * 2, 0.12 / rows
        frame = figure.add_axes((left + gap_x, bottom + gap_y, width - 2 * gap_x, height - 2 * gap_y))
        frame.set_facecolor(PANEL)
        frame.set_xticks([])
        frame.set_yticks([])
        for side in frame.spines.values():
            side.set_color("#dcdfe2")
        figure.text(
            left + 0.3 / COLUMNS, bottom + height - 0.75 / rows, drawn.title, fontsize=10, color=TEXT, va="center"
        )
        if drawn.panel["type"] == "stat":
            _draw_stat(frame, drawn)
            continue
        columns = legend_columns(drawn)
        legend_rows = -(-min(len(drawn.lines), LEGEND_LINES_MAX) // columns)
        inside = (
            left + 1.05 / COLUMNS,
            bottom + (0.95 + 0.5 * legend_rows) / rows,
            width - 1.35 / COLUMNS,
            height - (2.3 + 0.5 * legend_rows) / rows,
        )
        _draw_lines(figure.add_axes(inside), drawn, columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor=BACKGROUND)


def _draw_stat(frame: Axes, drawn: Drawn) -> None:
    last = [(name, line.points[-1][1]) for name, line in drawn.lines]
    shown = last[:6]
    if not shown:
        frame.text(0.5, 0.42, "no data", ha="center", va="center", fontsize=13, color=FAINT, transform=frame.transAxes)
    for place, (name, value) in enumerate(shown):
        x = (place + 0.5) / len(shown)
        colour = _threshold_colour(drawn.panel, value)
        frame.text(
            x, 0.46, in_unit(value, _unit(drawn.panel)), ha="center", va="center", fontsize=22, color=colour,
            weight="bold", transform=frame.transAxes,
        )  # fmt: skip
        frame.text(x, 0.12, name, ha="center", va="center", fontsize=8.5, color=FAINT, transform=frame.transAxes)


def legend_columns(drawn: Drawn) -> int:
    """How many names fit beside each other below the panel."""
    longest = max((len(name) for name, _ in drawn.lines), default=1)
    return max(1, min(4, int(drawn.panel["gridPos"]["w"] * 11 / (longest + 6))))


def _draw_lines(axes: Axes, drawn: Drawn, columns: int) -> None:
    axes.set_facecolor(PANEL)
    axes.tick_params(labelsize=7.5, colors=FAINT, length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#dcdfe2")
    axes.grid(axis="y", color="#e8eaec", linewidth=0.8)
    unit = _unit(drawn.panel)
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: in_unit(value, unit)))
    if not drawn.lines:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.text(0.5, 0.5, "no data", ha="center", va="center", fontsize=13, color=FAINT, transform=axes.transAxes)
        return
    custom = drawn.panel["fieldConfig"]["defaults"]["custom"]
    stacked = custom["stacking"]["mode"] == "normal"
    lines = sorted(drawn.lines, key=lambda named: -_largest(named[1]))
    if stacked:
        _draw_stack(axes, lines)
    for place, (name, line) in enumerate(lines):
        if not stacked:
            times = [at / DAY_S for at, _ in line.points]
            axes.plot(
                times, [value for _, value in line.points], linewidth=1.3, color=LINES[place % len(LINES)], label=name
            )
    axes.xaxis_date()
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
    axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    axes.set_xlim(drawn.start / DAY_S, drawn.end / DAY_S)
    if "min" in drawn.panel["fieldConfig"]["defaults"]:
        axes.set_ylim(bottom=0)
    low, high = axes.get_ylim()
    if high - low < 1e-9 or _flat(lines):
        axes.set_ylim(low, max(high, low + 1) if not stacked else high or 1)
    axes.yaxis.set_major_locator(_ticks(unit, *axes.get_ylim()))
    _draw_thresholds(axes, drawn.panel)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(
        handles[:LEGEND_LINES_MAX], names[:LEGEND_LINES_MAX], loc="upper left", bbox_to_anchor=(0.0, -0.13), ncols=columns,
        fontsize=7.5, frameon=False, labelcolor=TEXT, handlelength=1.2, columnspacing=1.2, borderaxespad=0,
    )  # fmt: skip


def _ticks(unit: str, low: float, high: float) -> ticker.Locator:
    """About four ticks; for bytes at powers of two."""
    if unit == "bytes" and high > low:
        return ticker.MultipleLocator(2 ** math.ceil(math.log2((high - low) / 5)))
    return ticker.MaxNLocator(4)


def _draw_stack(axes: Axes, lines: Sequence[tuple[str, Line]]) -> None:
    moments = sorted({at for _, line in lines for at, _ in line.points})
    values = [[dict(line.points).get(at, 0.0) for at in moments] for _, line in lines]
    colours = [LINES[place % len(LINES)] for place in range(len(lines))]
    axes.stackplot(
        [at / DAY_S for at in moments], values, labels=[name for name, _ in lines], colors=colours, alpha=0.75
    )


def _draw_thresholds(axes: Axes, panel: Mapping[str, Any]) -> None:
    """Dashed lines where Grafana has them, if they are within what is shown."""
    if panel["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"] != "dashed":
        return
    low, high = axes.get_ylim()
    for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]:
        if step["value"] is not None and low <= step["value"] <= high:
            axes.axhline(step["value"], color=COLOURS[step["color"]], linewidth=0.9, linestyle="--", alpha=0.8)


def _largest(line: Line) -> float:
    return max((value for _, value in line.points if math.isfinite(value)), default=0.0)


def _flat(lines: Sequence[tuple[str, Line]]) -> bool:
    return all(_largest(line) == 0 for _, line in lines)


def _unit(panel: Mapping[str, Any]) -> str:
    return panel["fieldConfig"]["defaults"]["unit"]


def _threshold_colour(panel: Mapping[str, Any], value: float) -> str:
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    colour = steps[0]["color"]
    for step in steps[1:]:
        if value >= step["value"]:
            colour = step["color"]
    return COLOURS[colour]


def in_unit(value: float, unit: str) -> str:
    """A value as Grafana writes it in this unit."""
    if not math.isfinite(value):
        return "-"
    match unit:
        case "s":
            return _seconds(value)
        case "bytes":
            return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
        case "percentunit":
            return f"{value * 100:.3g} %"
        case "none":
            return f"{value:g}"
        case _:
            suffix = {"reqps": " req/s", "ops": " ops/s", "cps": "/s"}.get(unit, "")
            return _scaled(value, 1000, ("", "k", "M", "G")) + suffix


def _seconds(value: float) -> str:
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if abs(value) >= size:
            return f"{value / size:.3g} {name}"
    return f"{value * 1e6:.3g} µs" if value else "0 s"


def _scaled(value: float, base: int, names: Sequence[str]) -> str:
    for name in names:
        if abs(value) < base or name == names[-1]:
            return f"{value:.3g} {name}".strip()
        value /= base
    raise ValueError("a unit without names")


# --- the command ------------------------------------------------------------------------------------------------------


async def draw_all(prometheus: Prometheus, folder: Path, start: float, end: float, rate_interval: str) -> list[Path]:
    """Draw every dashboard of `grafana/` into `folder`; the pictures."""
    paths: list[Path] = []
    for file in sorted(FOLDER.glob("*.json")):
        dashboard = read_dashboard(file)
        panels = await read_panels(prometheus, dashboard, start, end, rate_interval)
        paths.append(folder / f"{dashboard['uid']}.png")
        draw(dashboard, panels, paths[-1])
    return paths


async def _watch(run_dir: Path, folder: Path, seconds: int) -> list[Path]:
    targets, key = read_stack(run_dir)
    with TemporaryDirectory(prefix="stockgate-prometheus-") as data:
        server = PrometheusServer(Path(data), targets, key)
        await server.start()
        try:
            typer.echo(f"Prometheus watches the stack for {seconds} s; meanwhile its pages are at {server.url}")
            await asyncio.sleep(seconds)
            return await _draw_last(server.url, folder, seconds)
        finally:
            await server.stop()


async def _draw_last(url: str, folder: Path, seconds: int) -> list[Path]:
    prometheus = Prometheus(url)
    try:
        end = time.time()
        return await draw_all(prometheus, folder, end - seconds, end, f"{max(5, seconds // 20)}s")
    finally:
        await prometheus.close()


def main(
    run_dir: Annotated[Path, typer.Option(help="A running development stack.")] = Path(".run"),
    seconds: Annotated[int, typer.Option(min=5, max=86_400, help="How long to look.")] = 60,
    prometheus: Annotated[str, typer.Option(help="Address of a Prometheus that scrapes it already.")] = "",
    out: Annotated[Path, typer.Option(help="Where the pictures go.")] = PICTURES,
) -> None:
    """Draw the dashboards as pictures."""
    drawing = _draw_last(prometheus, out, seconds) if prometheus else _watch(run_dir, out, seconds)
    for path in asyncio.run(drawing):
        typer.echo(path)


if __name__ == "__main__":
    typer.run(main)
