"""Documents that hold: their blocks are run as they are printed, and say what the document says that they say.

A fenced block marked `sh` or `python` is executed, in the order of the page and in one shell, so that what one block defines the
next one has. A block marked `text` right behind one is its output, line by line: `…` stands for anything within a line, and
alone on a line for any number of lines. Blocks with other marks, or none, are only shown.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 100.0
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SEPARATOR = "\x1e"
_ANY_LINES = "…"


@dataclass(frozen=True)
class Block:
    """One executed block: where it stands, what is run, and the output that the page claims, if it claims one."""

    place: str
    language: str
    source: str
    claimed: str | None

    def shell(self) -> str:
        """The block for the shell."""
        return self.source if self.language == "sh" else f"python - <<'END_OF_BLOCK'\n{self.source}END_OF_BLOCK\n"


def executed_blocks(page: Path) -> list[Block]:
    """The blocks of a page that are run."""
    text = page.read_text()
    found = list(_FENCED.finditer(text))
    blocks: list[Block] = []
    for number, block in enumerate(found):
        if block[1] not in {"sh", "python"}:
            continue
        behind = found[number + 1] if number + 1 < len(found) else None
        adjacent = behind is not None and behind[1] == "text" and not text[block.end() : behind.start()].strip()
        place = f"{page.name}:{text.count(chr(10), 0, block.start()) + 1}"
        blocks.append(Block(place, block[1], block[2], behind[2] if behind is not None and adjacent else None))
    return blocks


def run_blocks(blocks: Sequence[Block], cwd: Path, environment: Mapping[str, str]) -> list[tuple[int, str]]:
    """Run the blocks in one bash; exit status and output (both streams) of each."""
    ends = f"printf '{_SEPARATOR}%s\\n' $?\n"
    script = "".join(f"{block.shell()}{ends}" for block in blocks)
    ran = subprocess.run(
        ["bash", "-c", script],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    pieces = re.split(rf"{_SEPARATOR}(\d+)\n", ran.stdout)
    return [(int(status), output) for output, status in zip(pieces[::2], pieces[1::2], strict=False)]


def wrong_with(blocks: Sequence[Block], results: Sequence[tuple[int, str]]) -> list[str]:
    """What does not come out as the page says, one text for each block."""
    wrong = [f"{block.place}: was not reached" for block in blocks[len(results) :]]
    for block, (status, output) in zip(blocks, results, strict=False):
        if status != 0:
            wrong.append(f"{block.place}: ended with {status}:\n{output}")
        elif block.claimed is not None and not says(block.claimed, output):
            wrong.append(f"{block.place}: the page says\n{block.claimed}\nand it was\n{output}")
    return wrong


def says(claimed: str, output: str) -> bool:
    """Whether the output is what the page claims."""
    lines = [
        r"(?:[^\n]*\n)*?" if line.strip() == _ANY_LINES else ".*".join(map(re.escape, line.split(_ANY_LINES))) + r"\n"
        for line in claimed.rstrip("\n").split("\n")
    ]
    ours = "".join(line.rstrip() + "\n" for line in output.rstrip().split("\n"))
    return re.fullmatch("".join(lines), ours) is not None
