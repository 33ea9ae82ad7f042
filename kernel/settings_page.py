"""`docs/settings.md`: every setting with its default, its bounds and what it says about itself in `kernel.settings`."""

import sys
from pathlib import Path
from typing import Final, get_args

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from kernel.settings import Settings

HEAD: Final = """\
# Settings

Made from the source by `make docs`; a test fails when it is stale.

Environment variables, or lines of a file `.env` in the folder where a process starts; the environment wins. A process reads
them once, when it starts, and refuses to start on one that is wrong: it names the setting, never its value. All processes of a
system should have the same ones, but for the accounts in the addresses.

| setting | default | may be | what |
| --- | --- | --- | --- |
"""


def settings_page() -> str:
    """The page as Markdown."""
    return HEAD + "".join(_row(name, field) for name, field in Settings.model_fields.items())


def _row(name: str, field: FieldInfo) -> str:
    what = " ".join((field.description or "").split()).replace("|", "\\|")
    return f"| `STOCKGATE_{name.upper()}` | {_default(field)} | {_bounds(field)} | {what} |\n"


def _default(field: FieldInfo) -> str:
    value = field.get_default()
    if isinstance(value, SecretStr):
        # The defaults hold no password: they are addresses on this machine.
        value = value.get_secret_value()
    if value is None or value == "":
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _bounds(field: FieldInfo) -> str:
    names = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    if names:
        return ", ".join(f"`{name}`" for name in names)
    least, most = (
        next((getattr(one, bound) for one in field.metadata if hasattr(one, bound)), None) for bound in ("ge", "le")
    )
    if least is None and most is None:
        return ""
    return f"{least} to {most}" if most is not None else f"{least} or more"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(settings_page())
