"""How long a call goes on, and how it waits between attempts."""

from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class Retries:
    """Bounds of one call. A repeat bears the same id, so it cannot do anything twice.

    `deadline_s`: from the first attempt to giving up. `attempt_s`: one attempt; above the service's own deadline (5 s by
    default), so that its answer is heard. Waits double from `pause_first_s` to `pause_max_s`, each drawn between half and
    whole of that; a `Retry-After` is a lower bound.
    """

    deadline_s: float = 20.0
    attempt_s: float = 7.0
    pause_first_s: float = 0.05
    pause_max_s: float = 2.0
    random: Random = field(default_factory=Random)

    def pause_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Seconds to wait after attempt number `attempt` (from 1) has failed."""
        full = min(self.pause_max_s, self.pause_first_s * 2 ** min(attempt - 1, 30))
        jittered = full * (0.5 + 0.5 * self.random.random())
        # The jitter is added to what the service asked for: all callers it told one second must not come back together.
        return jittered if retry_after_s is None else retry_after_s + jittered
