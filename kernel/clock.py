"""The wall clock and the monotonic clock, as an argument: tests bring their own."""

import time
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
