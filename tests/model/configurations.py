"""What is searched: small worlds completely, large ones by random walks.

Redis that restarts with its data intact needs no fault of its own: what it costs is the reply of
a script that has run, and that is a gateway that dies after its call.
"""

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

# For each guard the smallest world in which its absence shows. The complete protocol is searched
# in the same worlds, by the same code.
NEEDED: dict[Guard, Configuration] = {
    Guard.CHAIN_CHECK: _REVERTED_PAID,
    Guard.TERMS: _FORKED,
    Guard.DIGEST_NAMED: _REVERTED,
    Guard.CLOSE_QUEUED: _EMPTIED,
    Guard.OPENED_SET: _OPENED,
    Guard.EPOCH_IN_NAMES: _REVERTED,
    Guard.GAP_HELD: _PURGED,
    Guard.LOOKUP: _EVICTED,
    Guard.LOOKUP_FRESH: _EVICTED,
    Guard.LOOKUP_EPOCH: _REBUILT,
    Guard.KNOWN_NAMED: _REVERTED_PAID,
    Guard.KNOWN_APPLIED: _REVERTED_ASKED,
    Guard.FILTER_EVICTED: _FILTERED,
    Guard.FILTER_COMPLETE: _FILTERED_ANEW,
}

COMPLETE: tuple[Configuration, ...] = (
    Configuration("no fault", (_CANCELLED, _PAID), Faults()),
    *dict.fromkeys(NEEDED.values()),
    Configuration("gateway dies", (_CANCELLED, _HELD), Faults(1, gateway_crashes=1), evicts=True, trims=True),
    Configuration("lost lock", (_CANCELLED, _HELD), Faults(1, leader_pauses=1)),
    Configuration("leader dies, two workers", (_HELD, _HELD), Faults(2, leader_crashes=1, overlaps=1)),
    Configuration("rebuild, empty Redis", (_HELD, _HELD), Faults(2, rebuilds=1, empties=1)),
    Configuration("lost lock, empty Redis", (_HELD, _HELD), Faults(2, leader_pauses=1, empties=1)),
)

_ALL_ORDERS = (_CANCELLED, _RETURNED, _PAID)

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
