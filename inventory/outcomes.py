"""What a decision can come to. Outcomes are values; only failures of a store are exceptions."""

from enum import IntEnum


class Outcome(IntEnum):
    """The first element of a result, the same number in Lua (`lua/outcomes.lua`) and here."""

    DONE = 0
    """Accepted now, or accepted before (then the result's `replay` says so)."""
    INSUFFICIENT_STOCK = 1
    """detail: [[inventory_key, requested, available], …], only the short ones."""
    ORDER_CONFLICT = 2
    """Same order id, other lines or another buyer. detail: the order as it is."""
    ORDER_CLOSED = 3
    """Reserving an order that has no open hold any more. detail: the order as it is."""
    ILLEGAL_TRANSITION = 4
    """detail: [[inventory_key, state, reason], …], the lines that stand in the way."""
    HOLD_EXPIRED = 5
    """detail: the order as it is."""
    UNKNOWN_ORDER = 6
    UNKNOWN_INVENTORY_KEY = 7
    """detail: [inventory_key, …]."""
    VERSION_CONFLICT = 8
    """detail: [current inventory_version]."""
    REQUEST_CONFLICT = 9
    """Same request number, another request."""
    UNKNOWN_LINE = 10
    """A line was named that the order does not have. detail: [inventory_key, …]."""
    QUANTITY_LIMIT = 11
    """The change would bring a quantity beyond the exact range. detail: [inventory_key, …]."""

    # The rest never reaches a caller as a refusal: it is what the deciding path must do next, or a 503.
    NOT_LOADED = 20
    """detail: [inventory_key, …]: load these and ask again."""
    NEED_LOOKUP = 21
    """The order or request is unknown to Redis and the proof of its absence is missing or too old."""
    SKIPPED = 22
    """An earlier operation of the same request has to be repeated first."""
    KEY_FROZEN = 23
    """detail: [inventory_key, …]: held until an operator has looked at them."""
    LOST = 24
    """Opened in this epoch and absent or damaged; the shard must be rebuilt. detail: [inventory_key, …]."""
    OVERLOADED = 25
    """Too many unconfirmed bytes in the log."""


class CallStatus(IntEnum):
    """Whether a whole script call decided anything."""

    DECIDED = 0
    NO_HEAD = 1
    FENCED = 2
    STALE_TERM = 3
    NOT_CONTINUATION = 4
    """Redis does not hold an entry that the caller knows to be confirmed: it came back with older data."""


DECIDED_BY_STORE = frozenset(o for o in Outcome if o < Outcome.NOT_LOADED)
"""Outcomes that answer the caller."""
