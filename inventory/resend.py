"""When a leader publishes again what it has published: the worker asked for it, or idles over an empty queue. Pure.

A queue that was purged, or lost messages to an operator's hand, is filled again from Redis' log. Sending again is always
harmless, for the worker skips what it has; pauses that double keep it from becoming a storm while MySQL is away.
"""

from dataclasses import dataclass, field
from typing import Final

STANDSTILL_S: Final = 2.0
"""`applied_m` has to stand still for this long, below what is confirmed, before the queue is looked at."""
PAUSE_S: Final = 1.0
PAUSE_MAX_S: Final = 30.0


@dataclass(slots=True)
class Resend:
    """What is remembered between two looks at the row; times are monotonic seconds."""

    applied_m: int = -1
    moved_at: float = 0.0
    sent_at: float = field(default=float("-inf"))
    pause_s: float = PAUSE_S

    def wanted(self, now: float, applied_m: int, wanted_m: int) -> bool:
        """Look at the row; whether the worker misses an entry and it is time to send from behind `applied_m` again."""
        if applied_m != self.applied_m:
            self.applied_m, self.moved_at, self.pause_s = applied_m, now, PAUSE_S
            self.sent_at = float("-inf")
        return wanted_m > applied_m and self._rested(now)

    def stalled(self, now: float, confirmed_m: int) -> bool:
        """Whether nothing has moved for so long that the queue is worth a look; `wanted` was asked just before."""
        return self.applied_m < confirmed_m and now - self.moved_at >= STANDSTILL_S and self._rested(now)

    def sent(self, now: float) -> None:
        """It was sent again: not the next time before a longer pause, unless something moves."""
        self.sent_at = now
        self.pause_s = min(PAUSE_MAX_S, 2 * self.pause_s)

    def _rested(self, now: float) -> bool:
        return now - self.sent_at >= self.pause_s
