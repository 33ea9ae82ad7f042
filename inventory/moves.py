"""The one table of what may happen to a line and to the quantities of its key.

Lua (`lua/moves.lua`), the plan of the persist worker and the tests read the same table; `tests/lua` holds the script to
it for every state and move. No other move exists.
"""

from enum import IntEnum
from typing import Final, NamedTuple


class Move(IntEnum):
    """What an operation does. The numbers travel in scripts, events and the ledger and never change their meaning."""

    RESERVE = 1
    EXTEND = 2
    CONFIRM = 3
    RELEASE = 4
    CONSUME = 6
    RETURN = 7
    ADJUST = 8
    LOCK = 9
    UNLOCK = 10
    # Not moves of the table but operations of the same scripts: they change a line only by applying its expiry.
    READ = 20
    EXPIRE = 21
    # Only in the ledger: an event that an operator rejected, kept as a row without effect.
    REJECTED = 30


class LineState(IntEnum):
    """State of one line of an order."""

    NONE = 0
    RESERVED = 1
    CONFIRMED = 2
    RELEASED = 3
    CONSUMED = 4
    RETURNED = 5


class Quantities(NamedTuple):
    """The five quantities of a key, in units of stock; `total` is their sum."""

    available: int
    reserved: int
    sold: int
    consumed: int
    locked: int

    @property
    def total(self) -> int:
        """All stock that was ever adjusted in and not adjusted out."""
        return self.available + self.reserved + self.sold + self.consumed + self.locked


class Rule(NamedTuple):
    """One row of the table: from which state to which, and the sign of the quantity in each of the five columns."""

    source: LineState
    target: LineState
    signs: Quantities


S = LineState
MOVES: Final[dict[Move, Rule]] = {
    Move.RESERVE: Rule(S.NONE, S.RESERVED, Quantities(-1, +1, 0, 0, 0)),
    Move.EXTEND: Rule(S.RESERVED, S.RESERVED, Quantities(0, 0, 0, 0, 0)),
    Move.CONFIRM: Rule(S.RESERVED, S.CONFIRMED, Quantities(0, -1, +1, 0, 0)),
    Move.RELEASE: Rule(S.RESERVED, S.RELEASED, Quantities(+1, -1, 0, 0, 0)),
    Move.CONSUME: Rule(S.CONFIRMED, S.CONSUMED, Quantities(0, 0, -1, +1, 0)),
    Move.RETURN: Rule(S.CONFIRMED, S.RETURNED, Quantities(+1, 0, -1, 0, 0)),
    # The request number is the identity of these three; they touch no line.
    Move.ADJUST: Rule(S.NONE, S.NONE, Quantities(+1, 0, 0, 0, 0)),
    Move.LOCK: Rule(S.NONE, S.NONE, Quantities(-1, 0, 0, 0, +1)),
    Move.UNLOCK: Rule(S.NONE, S.NONE, Quantities(+1, 0, 0, 0, -1)),
}
"""EXTEND keeps the quantity where it is and moves only the due time; ADJUST takes a signed quantity."""

ORDER_MOVES: Final = frozenset({Move.RESERVE, Move.EXTEND, Move.CONFIRM, Move.RELEASE, Move.CONSUME, Move.RETURN})
REQUEST_MOVES: Final = frozenset({Move.ADJUST, Move.LOCK, Move.UNLOCK})
RESERVE_FAMILY: Final = frozenset({Move.RESERVE, *REQUEST_MOVES})
"""Operations that may take stock: refused by a full Redis. All others only give back or finish, and run on."""

RELEASE_REASONS: Final = ("cancelled", "payment_failed", "risk")
EXPIRED: Final = "expired"
"""The reason of a release that the clock made; no caller may name it."""
