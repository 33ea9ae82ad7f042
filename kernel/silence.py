"""Whether a store that accepts connections answers at all, so that not every caller has to wait for its own limit.

A server that is down refuses at once. One that hangs (stopped, a disk that does not write, a way that swallows packets)
lets everybody wait, each with a place of the pool in hand, and whoever comes next finds no place. After a few exchanges
without an answer one call at a time, and with pauses, finds out whether that is over; the others hear at once that it is
not.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.errors import Store, StoreUnavailable

SILENT_AFTER: Final = 2
"""So many exchanges in a row must have had no answer: one alone may have been a long statement."""
GIVEN_UP_AFTER_S: Final = 1.0
"""Who was cancelled after waiting this long had no answer either: callers have limits of their own."""


PROBE_PAUSE_S: Final = 0.5
"""Between two calls that find out: callers who come one after the other must not all be the one that waits."""


class Silence:
    """What the exchanges with one store came to, in the order in which they ended."""

    def __init__(self, store: Store, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store: Store = store
        self._clock = clock
        self._unanswered = 0
        self._probing = False
        self._probed_at = -math.inf

    @property
    def silent(self) -> bool:
        """Whether the store is taken to hang."""
        return self._unanswered >= SILENT_AFTER

    def answered(self) -> None:
        """It answered, or refused, or was not there: whatever it is, nobody is kept waiting."""
        self._unanswered = 0

    def unanswered(self) -> None:
        """Nothing came within the limit."""
        self._unanswered += 1

    def given_up(self, waited_s: float, limit_s: float) -> None:
        """The caller was cancelled after so long, within a limit of `limit_s`."""
        if waited_s >= min(GIVEN_UP_AFTER_S, limit_s):
            self.unanswered()

    def check(self) -> None:
        """Raise StoreUnavailable `not_executed` while the store is silent, unless it is time that a call finds out."""
        if self.silent and (self._probing or self._clock.monotonic() - self._probed_at < PROBE_PAUSE_S):
            detail = "it did not answer lately; one call at a time finds out whether it does again"
            raise StoreUnavailable(self._store, "not_executed", detail)

    @contextmanager
    def call(self) -> Generator[None]:
        """One call: raises as `check`, or finds out for the others."""
        self.check()
        if not self.silent:
            yield
            return
        self._probing = True
        try:
            yield
        finally:
            self._probing = False
            self._probed_at = self._clock.monotonic()
