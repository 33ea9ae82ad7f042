"""Named places where a test may end or stop a process. Without armed points a hit costs one truth test.

Armed by `STOCKGATE_FAILPOINTS=name=action[@nth],…` in the entry point. Actions: `kill` (SIGKILL), `stop` (SIGSTOP: the
test continues it), each at the nth hit (default the first).
"""

import os
import signal
from typing import Final

_ACTIONS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_armed: dict[str, list[int]] = {}


def arm(spec: str) -> None:
    """Arm the points of a specification; raises ValueError on an unknown action."""
    _armed.clear()
    for part in filter(None, spec.split(",")):
        name, _, action = part.partition("=")
        action, _, nth = action.partition("@")
        if action not in _ACTIONS:
            raise ValueError(f"failpoint {name!r}: unknown action {action!r}, use one of {sorted(_ACTIONS)}")
        _armed[name] = [_ACTIONS[action], int(nth or "1")]


def hit(name: str) -> None:
    """Do what is armed for this place, at its nth passing."""
    if _armed and (point := _armed.get(name)):
        point[1] -= 1
        if point[1] == 0:
            os.kill(os.getpid(), point[0])
