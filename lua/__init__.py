"""The Redis scripts, one operation to a file, and the loader that hands them out.

A file that starts with `#!lua` is a script; the others are parts, which a line `--- @include "name"` brings in when a
script is loaded. Imports only `kernel`.
"""

import re
from functools import cache
from pathlib import Path

from kernel.scripts import Script

_FOLDER = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z_]*")
_INCLUDE = re.compile(r'^--- @include "([a-z_]+)"$', re.MULTILINE)


@cache
def load(name: str) -> Script:
    """The script of `lua/<name>.lua` with its parts in place.

    Raises ValueError for a name that is none and for a part (only scripts can be run), FileNotFoundError for an unknown
    one.
    """
    source = resolve(name)
    if not source.startswith("#!lua"):
        raise ValueError(f"lua/{name}.lua is a part of scripts and cannot be run")
    return Script.of(name, source)


def resolve(name: str) -> str:
    """The text of a file with every part that it names in its place, each part once, where it is named first."""
    return _resolved(name, set())


def names() -> list[str]:
    """Every script that can be loaded."""
    return sorted(path.stem for path in _FOLDER.glob("*.lua") if path.read_text().startswith("#!lua"))


def _resolved(name: str, seen: set[str]) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"not a name of a script: {name!r}")
    seen.add(name)

    def part(found: re.Match[str]) -> str:
        return "" if found[1] in seen else _resolved(found[1], seen)

    return _INCLUDE.sub(part, (_FOLDER / f"{name}.lua").read_text())
