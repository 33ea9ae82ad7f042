"""What a command shows to people: sentences and tables, coloured on a terminal, and plain lines with tabs in a pipe.

All of it came from outside at some time, so nothing in it may move the cursor or colour what follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Section:
    """Sentences, then rows of cells under their columns. `style` is rich's and colours the title and the sentences."""

    title: str
    sentences: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = field(default_factory=tuple[Sequence[object], ...])
    style: str = ""


NOTHING: Final = "none"
UNBROKEN: Final = frozenset({"at (UTC)", "since (UTC)", "noted (UTC)", "seq", "move", "status"})
"""Columns whose cells are short and easier to read in one piece."""


def printable(value: object) -> str:
    """A value as one line; what cannot be printed is written as an escape, nothing at all as a dash."""
    text = "-" if value is None or value == "" else str(value)
    return text if text.isprintable() else "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def show(sections: Sequence[Section], console: Console | None = None) -> None:
    """Print sections, for a terminal or plainly."""
    console = console or Console()
    if console.is_terminal:
        for section in sections:
            _show_on_terminal(console, section)
    else:
        console.file.write("\n".join(plain_lines(sections)) + "\n")


def plain_lines(sections: Sequence[Section]) -> list[str]:
    """One line for each sentence and row; cells are divided by tabs, and none within a cell is left as one."""
    lines: list[str] = []
    for section in sections:
        lines += ["", printable(section.title)] if lines else [printable(section.title)]
        lines += [printable(sentence) for sentence in section.sentences]
        if section.columns:
            lines.append("\t".join(section.columns))
            lines += ["\t".join(printable(cell) for cell in row) for row in section.rows] or [NOTHING]
    return lines


def _show_on_terminal(console: Console, section: Section) -> None:
    console.print(Text(printable(section.title), f"bold {section.style}".strip()))
    for sentence in section.sentences:
        console.print(Padding(Text(printable(sentence), section.style), (0, 0, 0, 2)))
    if section.columns:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in section.columns:
            # Folded and never cut: a trace id with its end missing finds nothing.
            table.add_column(column, no_wrap=column in UNBROKEN, overflow="fold")
        for row in section.rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        console.print(Padding(table if section.rows else Text(NOTHING, "dim"), (0, 0, 0, 2)))
    console.print()
