"""The wall clock and the monotonic clock, as an argument: tests bring their own."""

import time
from datetime import UTC, datetime
from typing import Final


class Clock:
    """Reads time. A subclass in a test overrides both methods."""

    __slots__ = ()

    def now_ms(self) -> int:
        """UTC epoch milliseconds of this machine. Deadlines of holds are made by Redis' clock, not by this one."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never jump, the same clock as the event loop's; for deadlines and durations."""
        return time.monotonic()


SYSTEM_CLOCK: Final = Clock()

_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999."""


def instant(ms: int) -> datetime:
    """UTC from epoch ms; what lies outside of the calendar becomes its nearest end, for damage has to be shown too."""
    if not 0 <= ms <= _LAST_MS:
        ms = 0 if ms < 0 else _LAST_MS
    return datetime.fromtimestamp(ms / 1000, UTC)
