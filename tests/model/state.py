"""The values a state of the model is made of: immutable, hashable, compared by content.

One shard, one inventory key. A digest is the chain itself, spelled out ("R0a.X0a." is order 0
reserved and then released by attempt a): equal digests mean equal history, and a trace can be read.
"""

from enum import StrEnum
from typing import Literal, NamedTuple

Kind = Literal["reserve", "confirm", "release", "return"]
Mode = Literal[
    "hot",  # Redis decides
    "opening",  # nobody does
    "db",  # MySQL does
]
Stage = Literal[
    "idle",  # not a leader
    "locked",  # holds the lock, has no term yet
    "term",  # has published TERM, waits until the worker has applied it
    "check",  # compares Redis' log with the row
    "relay",
    "fence",  # on the way to close: Redis is fenced if it answers
    "drain",  # what the fenced log still holds is published
    "close",  # everything is confirmed, CLOSE may go
    "claimed",  # of a switch to db: recorded that CLOSE goes, it cannot be aborted any more
    "closing",  # CLOSE is in the queue, the row has not moved
    "open",  # the row says opening: draw an epoch
    "swap",  # the new head exists, fenced: set the row hot by compare-and-set
    "unfence",
    "db",  # leads while MySQL decides, with or without Redis
]


class Guard(StrEnum):
    """What can be taken out of the protocol, to see that it is needed."""

    CHAIN_CHECK = "chain_check"
    TERMS = "terms"
    DIGEST_NAMED = "digest_named"
    CLOSE_QUEUED = "close_queued"
    OPENED_SET = "opened_set"
    EPOCH_IN_NAMES = "epoch_in_names"
    GAP_HELD = "gap_held"
    LOOKUP = "lookup"
    LOOKUP_FRESH = "lookup_fresh"
    LOOKUP_EPOCH = "lookup_epoch"
    KNOWN_NAMED = "known_named"
    KNOWN_APPLIED = "known_applied"
    # Of the filter (docs/adr/0008).
    FILTER_EVICTED = "filter_evicted"
    FILTER_COMPLETE = "filter_complete"
    # Of the mode in which MySQL decides, and of the ways there and back.
    SHARE_LOCK = "share_lock"
    EXCLUSIVE_OPEN = "exclusive_open"
    EPOCH_PER_ATTEMPT = "epoch_per_attempt"
    CLAIM_CLOSE = "claim_close"
    DB_EPOCH = "db_epoch"
    ORDER_UNIQUE = "order_unique"
    OPENING_TO_DB = "opening_to_db"
    DONE_WITH_HOT = "done_with_hot"
    STAND_WITHOUT_REDIS = "stand_without_redis"


class Quantities(NamedTuple):
    available: int
    reserved: int = 0
    sold: int = 0


class Move(NamedTuple):
    start: Kind | None
    available: int
    reserved: int
    sold: int


# The state of a line is the kind of its last move; None is a line that does not exist.
MOVES: dict[Kind, Move] = {
    "reserve": Move(None, -1, +1, 0),
    "confirm": Move("reserve", 0, -1, +1),
    "release": Move("reserve", +1, -1, 0),
    "return": Move("confirm", +1, 0, -1),
}
_LETTER: dict[Kind, str] = {"reserve": "R", "confirm": "C", "release": "X", "return": "T"}


def moved(quantities: Quantities, kind: Kind) -> Quantities:
    move = MOVES[kind]
    return Quantities(
        quantities.available + move.available,
        quantities.reserved + move.reserved,
        quantities.sold + move.sold,
    )


class Event(NamedTuple):
    """`attempt` stands for time and trace id: the same decision made twice is two events."""

    seq: int
    kind: Kind
    order: int
    attempt: int
    after: Quantities


def chained(digest: str, event: Event) -> str:
    return f"{digest}{_LETTER[event.kind]}{event.order}{chr(97 + event.attempt)}."


class Entry(NamedTuple):
    event: Event
    digest: str


class Line(NamedTuple):
    """A line of an order record in Redis. `m` is 0 if MySQL told us of it in this epoch."""

    kind: Kind
    m: int


class Space(NamedTuple):
    """All of the shard's Redis names in one epoch."""

    fenced: bool
    term: int
    epoch: int
    orders: tuple[Line | None, ...]
    mark: int = 0
    evicted_m: int = 0
    trimmed: int = 0
    log: tuple[Entry, ...] = ()
    opened: bool = False
    quantities: Quantities = Quantities(0)
    seq: int = 0
    filtered: frozenset[int] = frozenset()
    """Orders that MySQL may know though Redis does not."""
    scanned: int = 0
    """Orders that the leader has looked for in MySQL; all of them: the filter is complete."""

    @property
    def last(self) -> int:
        return self.trimmed + len(self.log)

    def entry(self, m: int) -> Entry | None:
        return self.log[m - self.trimmed - 1] if self.trimmed < m <= self.last else None

    def holds(self, m: int, digest: str) -> bool:
        if m == 0:
            return self.trimmed == 0
        entry = self.entry(m)
        return entry is not None and entry.digest == digest


class Redis(NamedTuple):
    register: int
    spaces: tuple[Space, ...]


class Message(NamedTuple):
    what: Literal["TERM", "ENTRY", "CLOSE"]
    term: int
    epoch: int = 0
    m: int = 0
    event: Event | None = None
    digest: str = ""
    switch: int = 0
    """Of a CLOSE: the switch to db for which the epoch ends; 0 where it is opened anew."""


class Switch(NamedTuple):
    """A switch of mode that runs. `claimed`: the step "close" is recorded."""

    number: int
    to: Mode
    claimed: bool = False


class MySQL(NamedTuple):
    quantities: Quantities
    lines: tuple[Kind | None, ...]
    epoch: int = 1
    mode: Mode = "hot"
    term: int = 1
    applied_term: int = 1
    applied_m: int = 0
    applied_digest: str = ""
    wanted_m: int = 0
    ledger: tuple[Event, ...] = ()
    alarm: str = ""
    switch: Switch | None = None
    switches: int = 0  # how many were ever begun: the next one's number
    aborted: frozenset[int] = frozenset()
    closed_for: int = 0  # the switch of the CLOSE that was obeyed last

    @property
    def hot(self) -> bool:
        return self.mode == "hot"


class Leader(NamedTuple):
    """One candidate. Without a connection it has lost the lock, and may not know it yet."""

    stage: Stage = "idle"
    connected: bool = False
    term: int = 0
    epoch: int = 0
    drawn: int = 0
    sent_m: int = 0
    sent_digest: str = ""
    confirmed_m: int = 0
    confirmed_digest: str = ""
    wire: tuple[Message, ...] = ()
    switch: int = 0  # the switch that it carries out; 0 on the way to close is a rebuild


class Lookup(NamedTuple):
    """One SELECT: the shard row, the key's row and the order's line."""

    epoch: int
    applied_m: int
    applied_digest: str
    quantities: Quantities
    seq: int
    line: Kind | None


class Ticket(NamedTuple):
    """What a request waits for: that the leader names this entry."""

    epoch: int
    m: int
    digest: str


class Transaction(NamedTuple):
    """A gateway's transaction in mode db: it has locked the shard row in share mode, read that MySQL decides, and read the
    order. An order that is there it has locked; one that is not cannot be locked.
    """

    line: Kind | None


class Request(NamedTuple):
    """A request inside a gateway; its client may have given it up long ago."""

    order: int
    kind: Kind
    attempt: int
    gateway: int
    lookup: Lookup | None = None
    ticket: Ticket | None = None
    transaction: Transaction | None = None


class Client(NamedTuple):
    """Who owns an order: `at` counts the answered operations of its program."""

    at: int = 0
    attempt: int = 0
    waits: bool = False


class Faults(NamedTuple):
    """How often each thing may still go wrong in this run."""

    total: int = 0
    reverts: int = 0  # Redis comes back with, or is replaced by, an older state
    empties: int = 0
    leader_crashes: int = 0
    leader_pauses: int = 0  # the lock is lost and the old leader does not know it
    gateway_crashes: int = 0
    repeats: int = 0  # a client gives up waiting and asks again
    overlaps: int = 0  # a message is delivered to two workers
    purges: int = 0
    rebuilds: int = 0  # an operator asks for a rebuild
    outages: int = 0  # Redis does not answer for a while
    switches: int = 0  # an operator asks for the other mode
    aborts: int = 0


class State(NamedTuple):
    redis: Redis
    mysql: MySQL
    queue: tuple[Message, ...]
    leaders: tuple[Leader, ...]
    clients: tuple[Client, ...]
    faults: Faults
    requests: tuple[Request, ...] = ()
    answered: tuple[tuple[int, Kind], ...] = ()  # with 2xx, from the clients' history
    refused: tuple[tuple[int, Kind], ...] = ()  # only where refusals are asked to bind
    contradicted: tuple[int, Kind] | None = None  # refused, though the move before it was answered with 2xx
    promised: Ticket | None = None  # the highest entry that somebody was told of
    lock: int | None = 0
    late: tuple[tuple[Message, ...], ...] = ()  # what dead connections may still deliver
    replica: Redis | None = None  # an older Redis that may take over
    delivered_twice: Message | None = None
    purged: bool = False
    remembered: tuple[tuple[int, int], ...] = ()  # per gateway; only without DIGEST_NAMED
    away: bool = False  # Redis does not answer; what it holds, it keeps
    earlier: frozenset[tuple[tuple[int, Kind], tuple[int, Kind]]] = frozenset()
    """What was answered before what was asked, of different orders; only where a configuration is `timed`."""
