"""What `load` tells Locust's process: one JSON file, whose path stands in the environment."""

import os
from pathlib import Path
from typing import Final

import msgspec

PLAN_VARIABLE: Final = "STOCKGATE_LOAD_PLAN"


class Plan(msgspec.Struct, frozen=True):
    """One run of one scenario. `api_keys` by scope."""

    scenario: str
    api_keys: dict[str, str]
    inventory_keys: list[str]
    results: str
    """The file to leave the `Result` in."""
    requests_max: int | None = None
    """End when so many requests were answered, if that is before the time is over."""


def read_plan() -> Plan:
    """The plan of this process. Raises SystemExit with what to do where there is none."""
    path = os.environ.get(PLAN_VARIABLE)
    if not path:
        raise SystemExit(f"{PLAN_VARIABLE} is not set: run `make load` (`--web` opens Locust's page)")
    return msgspec.json.decode(Path(path).read_bytes(), type=Plan)
