"""Operations and their results, as they travel between the batcher, the deciding paths and the scripts.

All are msgpack arrays: positions are the wire format and are named only here and in `lua/decide.lua`.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from inventory.moves import Move
from inventory.outcomes import CallStatus, Outcome


class Line(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One line asked for: a key and a quantity in units of stock, 1 to `limits.QTY_MAX`."""

    inventory_key: str
    qty: int


class Operation(msgspec.Struct, array_like=True, gc=False):
    """One thing to decide. `group` numbers the request within its call; its operations keep their order.

    `proof` is `applied_m` of the shard row at the SELECT that did not find `ref` in MySQL, or -1 without one; it is valid
    only in the epoch of that row. `reason` is free text of at most `limits.REASON_CHARS_MAX` characters, or one of
    `moves.RELEASE_REASONS`. Unused fields keep their defaults.
    """

    kind: Move
    group: int
    tenant: str
    ref: str
    """Order id, or request number for ADJUST, LOCK and UNLOCK."""
    proof: int = -1
    trace_id: str = ""
    actor: str = ""
    """Name of the API key that asked."""
    reason: str = ""
    fingerprint: str = ""
    """RESERVE and requests: what must be the same in a repeat."""
    ttl_ms: int = 0
    """RESERVE, EXTEND: the hold lasts this long from the script's own clock."""
    buyer_id: str = ""
    base_version: int = -1
    """ADJUST: the inventory_version the caller saw, -1 = any."""
    lines: list[Line] = []
    """RESERVE: what is asked, each key once. Requests: one line, ADJUST with a signed delta. Else: only keys count, and
    no line means all lines of the order."""

    def keys(self) -> list[str]:
        """The inventory keys that the caller named."""
        return [line.inventory_key for line in self.lines]


class OrderLine(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One line of an order as it stands: `state` is a `LineState`, (epoch, seq) its last change on its key."""

    inventory_key: str
    qty: int
    state: int
    reason: str
    epoch: int
    seq: int


class OrderView(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An order as it stands. `due_ms` is the effective due time (UTC epoch ms) of its open lines."""

    due_ms: int
    buyer_id: str
    lines: list[OrderLine]


class BalanceView(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A key after an operator's change, or as it was read."""

    inventory_key: str
    available: int
    reserved: int
    sold: int
    consumed: int
    locked: int
    seq: int
    version: int


class Result(msgspec.Struct, array_like=True, gc=False):
    """What one operation came to.

    `wait` is 1 where the answer promises something that is not known to be confirmed: it waits for the call's entry to be
    named. `detail` depends on the outcome (see `Outcome`); DONE carries an `OrderView` or a `BalanceView` as plain lists,
    decoded by `order_view` and `balance_view`.
    """

    outcome: Outcome
    replay: int = 0
    wait: int = 0
    detail: Any = None

    def order_view(self) -> OrderView:
        """The order of a DONE, ORDER_CONFLICT, ORDER_CLOSED or HOLD_EXPIRED; raises msgspec.ValidationError."""
        return msgspec.convert(self.detail, OrderView)

    def balance_view(self) -> BalanceView:
        """The key of a DONE operator's change; raises msgspec.ValidationError."""
        return msgspec.convert(self.detail, BalanceView)


class CallHeader(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """First argument of the deciding scripts. `term` 0 = a gateway; a leader names its own.

    (known_m, known_digest) is the highest entry of this epoch that the process knows to be confirmed, 0 and "" without
    one: a Redis that does not hold it has come back with older data, and decides nothing.
    """

    epoch: int
    term: int
    unconfirmed_bytes_reserve_max: int
    unconfirmed_bytes_settle_max: int
    known_m: int = 0
    known_digest: str = ""


class Reply(msgspec.Struct, array_like=True, gc=False):
    """What a deciding script returns, packed. (m, digest) is the last entry of the log after the call."""

    status: CallStatus
    m: int = 0
    digest: str = ""
    confirmed_m: int = 0
    now_ms: int = 0
    results: list[Result] = []
    filtered: int = 0
    """1 where the filter is complete: an order that Redis does not know need not be looked up to be taken as new."""


def lines_fingerprint(lines: Sequence[Line]) -> str:
    """What makes two RESERVEs of one order the same: 16 hex digits over the lines, whatever their order."""
    if len(lines) == 1:
        return fingerprint(f"{lines[0].inventory_key}\n{lines[0].qty}")
    ordered = sorted(lines, key=lambda line: line.inventory_key)
    return fingerprint(*(f"{line.inventory_key}\n{line.qty}" for line in ordered))


def fingerprint(*parts: str) -> str:
    """16 hex digits over some strings that hold no NUL."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()
