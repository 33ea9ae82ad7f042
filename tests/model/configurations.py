"""What is searched: small worlds completely, large ones by random walks.

Redis that restarts with its data intact needs no fault of its own: what it costs is the reply of
a script that has run, and that is a gateway that dies after its call.
"""

from typing import NamedTuple

from tests.model.protocol import Configuration
from tests.model.state import Faults, Guard, Kind

_HELD: tuple[Kind, ...] = ("reserve",)
_CANCELLED: tuple[Kind, ...] = ("reserve", "release")
_PAID: tuple[Kind, ...] = ("reserve", "confirm")
_UNKNOWN: tuple[Kind, ...] = ("release",)  # of an order that nobody made: it loads the key and is refused
_RETURNED: tuple[Kind, ...] = ("reserve", "confirm", "return")

_OPENED = Configuration("two loaders", (_HELD, _HELD), Faults())
_EMPTIED = Configuration("empty Redis", (_HELD, _HELD), Faults(1, empties=1))
_REVERTED = Configuration("lost tail", (_HELD, _HELD), Faults(1, reverts=1))
_REVERTED_PAID = Configuration("lost tail, paid", (_PAID, _HELD), Faults(1, reverts=1))
_REVERTED_ASKED = Configuration("lost tail, found in MySQL", (_PAID, _UNKNOWN), Faults(2, reverts=1, gateway_crashes=1))
_PURGED = Configuration("hole in the queue", (_CANCELLED, _HELD), Faults(1, purges=1))
_REBUILT = Configuration("rebuild", (_CANCELLED, _HELD), Faults(1, rebuilds=1))
_EVICTED = Configuration("repeats and eviction", (_CANCELLED, _HELD), Faults(1, repeats=1), evicts=True)
_FILTERED = _EVICTED._replace(name="repeats and eviction, with a filter", filters=True)
_FILTERED_ANEW = Configuration(
    "a filter after a rebuild", (_CANCELLED,), Faults(2, repeats=1, rebuilds=1), evicts=True, filters=True
)
_FORKED = Configuration("lost lock and lost tail", (_HELD, _HELD), Faults(2, leader_pauses=1, reverts=1))

# The mode in which MySQL decides, and the ways there and back.
_DECIDED = Configuration("MySQL decides", (_CANCELLED, _PAID), Faults(1, repeats=1), mode="db", timed=True)
_OPENED_FROM_DB = Configuration("db to hot", (_CANCELLED, _HELD), Faults(1, switches=1), mode="db", timed=True)
_OPENED_TWICE = Configuration("db to hot, lost lock", (_HELD,), Faults(2, switches=1, leader_pauses=1), mode="db")
_OPENED_IN_VAIN = Configuration("db to hot, Redis away", (_HELD,), Faults(2, switches=1, outages=1), mode="db")
_OPENED_BY_NOBODY = Configuration(
    "db to hot, Redis away, leader dies", (_HELD,), Faults(3, switches=1, outages=1, leader_crashes=1), mode="db"
)
_CLOSED_TO_DB = Configuration("hot to db", (_CANCELLED, _HELD), Faults(1, switches=1), timed=True)
_CLOSED_BLIND = Configuration("hot to db, Redis away", (_RETURNED,), Faults(2, switches=1, outages=1))
_ABORTED = Configuration("a switch is aborted", (_HELD, _HELD), Faults(2, switches=1, aborts=1))
_STRANDED = Configuration("Redis away in a rebuild", (_HELD,), Faults(3, rebuilds=1, switches=1, outages=1))


class Needed(NamedTuple):
    """Where the absence of a guard shows, and the invariant that breaks there, as `invariants` words it."""

    configuration: Configuration
    breaks: str


_LOST = "was answered 2xx"
_CONTRADICTED = "was refused, and what it rests on had been answered 2xx"
_STUCK = "never settles"
_OVERSOLD = "oversold"

# For each guard the smallest world in which its absence shows. The complete protocol is searched
# in the same worlds, by the same code.
NEEDED: dict[Guard, tuple[Needed, ...]] = {
    Guard.CHAIN_CHECK: (Needed(_REVERTED_PAID, _STUCK),),
    Guard.TERMS: (Needed(_FORKED, "fork"),),
    Guard.DIGEST_NAMED: (Needed(_REVERTED, _LOST),),
    Guard.CLOSE_QUEUED: (Needed(_EMPTIED, _LOST), Needed(_CLOSED_TO_DB, _LOST)),
    Guard.OPENED_SET: (Needed(_OPENED, "ledger is not dense"),),
    Guard.EPOCH_IN_NAMES: (Needed(_REVERTED, _LOST),),
    Guard.GAP_HELD: (Needed(_PURGED, "ledger is not dense"),),
    Guard.LOOKUP: (Needed(_EVICTED, "illegal path"),),
    Guard.LOOKUP_FRESH: (Needed(_EVICTED, _CONTRADICTED),),
    Guard.LOOKUP_EPOCH: (Needed(_REBUILT, _CONTRADICTED),),
    Guard.KNOWN_NAMED: (Needed(_REVERTED_PAID, _CONTRADICTED), Needed(_CLOSED_BLIND, _CONTRADICTED)),
    Guard.KNOWN_APPLIED: (Needed(_REVERTED_ASKED, _CONTRADICTED),),
    Guard.FILTER_EVICTED: (Needed(_FILTERED, _CONTRADICTED),),
    Guard.FILTER_COMPLETE: (Needed(_FILTERED_ANEW, _CONTRADICTED),),
    Guard.SHARE_LOCK: (Needed(_OPENED_FROM_DB, _OVERSOLD),),
    Guard.EXCLUSIVE_OPEN: (Needed(_OPENED_FROM_DB, _OVERSOLD),),
    Guard.EPOCH_PER_ATTEMPT: (Needed(_OPENED_TWICE, _LOST),),
    Guard.CLAIM_CLOSE: (Needed(_ABORTED, "was aborted, and is carried out"),),
    # Nothing is oversold or lost without it: what it saves is that one rule, to ask in no older epoch, is enough.
    Guard.DB_EPOCH: (Needed(_CLOSED_BLIND, _CONTRADICTED),),
    Guard.ORDER_UNIQUE: (Needed(_DECIDED, "a change twice"),),
    Guard.OPENING_TO_DB: (Needed(_OPENED_IN_VAIN, _STUCK), Needed(_STRANDED, _STUCK)),
    Guard.DONE_WITH_HOT: (Needed(_OPENED_IN_VAIN, _STUCK),),
    Guard.STAND_WITHOUT_REDIS: (Needed(_OPENED_BY_NOBODY, _STUCK),),
}

COMPLETE: tuple[Configuration, ...] = (
    Configuration("no fault", (_CANCELLED, _PAID), Faults()),
    *dict.fromkeys(needed.configuration for worlds in NEEDED.values() for needed in worlds),
    Configuration("gateway dies", (_CANCELLED, _HELD), Faults(1, gateway_crashes=1), evicts=True, trims=True),
    Configuration("lost lock", (_CANCELLED, _HELD), Faults(1, leader_pauses=1)),
    Configuration("leader dies, two workers", (_HELD, _HELD), Faults(2, leader_crashes=1, overlaps=1)),
    Configuration("rebuild, empty Redis", (_HELD, _HELD), Faults(2, rebuilds=1, empties=1)),
    Configuration("lost lock, empty Redis", (_HELD, _HELD), Faults(2, leader_pauses=1, empties=1)),
    Configuration("MySQL decides, gateway dies", (_CANCELLED, _PAID), Faults(1, gateway_crashes=1), mode="db"),
    Configuration("db to hot, leader dies", (_HELD, _HELD), Faults(2, switches=1, leader_crashes=1), mode="db"),
    Configuration(
        "db to hot, with a filter", (_CANCELLED,), Faults(2, switches=1, repeats=1), evicts=True, filters=True
    )._replace(mode="db"),
    Configuration(
        "db to hot and back, Redis away", (_HELD, _HELD), Faults(3, switches=2, outages=1), mode="db", timed=True
    ),
    Configuration("hot to db, Redis away, two orders", (_HELD, _HELD), Faults(2, switches=1, outages=1), timed=True),
    Configuration("hot to db, Redis away, leader dies", (_HELD,), Faults(3, switches=1, outages=1, leader_crashes=1)),
    Configuration("hot to db, empty Redis", (_HELD, _HELD), Faults(2, switches=1, empties=1)),
    Configuration("hot to db, hole in the queue", (_HELD, _HELD), Faults(2, switches=1, purges=1)),
    Configuration("hot to db, two workers", (_HELD, _HELD), Faults(2, switches=1, overlaps=1)),
    Configuration("hot to db, lost lock", (_HELD,), Faults(2, switches=1, leader_pauses=1)),
    Configuration("to db and back", (_HELD, _HELD), Faults(2, switches=2), timed=True),
    Configuration("to db and back, evicted", (_CANCELLED,), Faults(3, switches=2, repeats=1), evicts=True, trims=True),
    Configuration("switches aborted, Redis away", (_HELD,), Faults(4, switches=2, aborts=2, outages=1)),
    Configuration("a switch is aborted, leader dies", (_HELD,), Faults(3, switches=1, aborts=1, leader_crashes=1)),
    Configuration("a switch is aborted in a rebuild", (_HELD,), Faults(3, rebuilds=1, switches=1, aborts=1)),
)

_ALL_ORDERS = (_CANCELLED, _RETURNED, _PAID)
_SWITCHED = Faults(
    total=5,
    reverts=1,
    empties=1,
    leader_crashes=2,
    leader_pauses=2,
    gateway_crashes=1,
    repeats=1,
    overlaps=1,
    rebuilds=1,
    outages=2,
    switches=3,
    aborts=2,
)

RANDOM: tuple[Configuration, ...] = (
    Configuration(
        "three faults of any kind",
        _ALL_ORDERS,
        Faults(
            total=3,
            reverts=3,
            empties=3,
            leader_crashes=3,
            leader_pauses=3,
            gateway_crashes=2,
            repeats=2,
            overlaps=2,
            rebuilds=1,
        ),
        evicts=True,
        trims=True,
    ),
    # A queue that loses messages is no part of what is promised while Redis loses data too.
    Configuration(
        "three faults, holes in the queue",
        _ALL_ORDERS,
        Faults(
            total=3,
            leader_crashes=3,
            leader_pauses=3,
            gateway_crashes=2,
            repeats=2,
            overlaps=2,
            purges=3,
            rebuilds=1,
        ),
        evicts=True,
        trims=True,
    ),
    Configuration("five faults and switches", _ALL_ORDERS, _SWITCHED, evicts=True, trims=True, timed=True),
    Configuration(
        "five faults and switches, from db", _ALL_ORDERS, _SWITCHED, evicts=True, trims=True, timed=True
    )._replace(mode="db"),
)

# What the protocol does not promise, kept here so that nobody relies on it: that a refusal is the
# last word on its order id. An earlier attempt may still be under way, or be in the queue while
# Redis has come back older. Callers do not compensate on an unknown outcome, they repeat.
REFUSALS: tuple[Configuration, ...] = (
    Configuration("an attempt overtaken", (_HELD, _CANCELLED), Faults(1, repeats=1), refusals_bind=True),
    Configuration(
        "an attempt in the queue, and Redis older",
        (_HELD, _HELD),
        Faults(2, gateway_crashes=1, reverts=1),
        refusals_bind=True,
    ),
)
