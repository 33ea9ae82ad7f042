"""One key in both stores: what the difference means. Pure; MySQL was read before Redis.

Redis moves toward MySQL, never the other way, and one reading proves nothing that has to be repaired.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from inventory.moves import Quantities

FINDINGS_MAX: Final = 100
"""Findings that one pass reports by name; the rest are counted."""


class KeyClass(Enum):
    """The classes of the reconciler."""

    COLD = "cold"
    """Not opened in this epoch."""
    IN_FLIGHT = "in_flight"
    """Redis is ahead: what it decided is on its way."""
    HEALTHY = "healthy"
    DRIFTED = "drifted"
    """Same seq, other quantities."""
    LOST = "lost"
    """Opened and absent or damaged, or Redis is behind what MySQL already had before."""


class InMySQL(NamedTuple):
    """A balance row. `held` = an operator has to look at it."""

    quantities: Quantities
    seq: int
    held: bool = False


class InRedis(NamedTuple):
    """A balance hash. `quantities` is None where the key is opened but its hash is absent or damaged."""

    quantities: Quantities | None
    seq: int


def classify(mysql: InMySQL | None, redis: InRedis | None) -> KeyClass:
    """The class of one key; `redis` None = not opened, `mysql` None = MySQL has no such key."""
    if redis is None:
        return KeyClass.COLD
    if redis.quantities is None or mysql is None or redis.seq < mysql.seq:
        # Redis can only have grown since MySQL was read, so being behind is no race.
        return KeyClass.LOST
    if redis.seq > mysql.seq:
        return KeyClass.IN_FLIGHT
    return KeyClass.HEALTHY if redis.quantities == mysql.quantities else KeyClass.DRIFTED


class Reading(NamedTuple):
    """One key as both stores showed it in one epoch."""

    epoch: int
    inventory_key: str
    mysql: InMySQL | None
    redis: InRedis | None

    @property
    def key_class(self) -> KeyClass:
        """What it means."""
        return classify(self.mysql, self.redis)


def proven(first: Reading, second: Reading) -> bool:
    """Whether two readings, one after the other, prove that the key has to be repaired.

    The class must be the same one in the same epoch, and a drifted key must not have moved in between.
    """
    if first.epoch != second.epoch or first.key_class is not second.key_class:
        return False
    if first.key_class is KeyClass.DRIFTED:
        return first == second
    return first.key_class is KeyClass.LOST


@dataclass(slots=True)
class Findings:
    """What one pass saw. Counts are keys."""

    epoch: int
    classes: Counter[KeyClass] = field(default_factory=Counter[KeyClass])
    repairs: Counter[KeyClass] = field(default_factory=Counter[KeyClass])
    """Corrections of drifted keys, and rebuilds asked for lost ones."""
    stuck: int = 0
    """Keys in flight that have not moved for longer than the alarm's limit."""
    found: list[Reading] = field(default_factory=list[Reading])
    """Proven drifted or lost keys, at most FINDINGS_MAX."""
    detail: str = ""

    @property
    def repaired(self) -> int:
        """Repairs of all classes."""
        return self.repairs.total()

    @property
    def worth_a_task(self) -> bool:
        """Whether the pass leaves a row of its own."""
        return bool(self.found) or self.stuck > 0
