"""Whether the shard's queue keeps what it confirms: facts as the broker tells them, then rules over them.

There is no check of exchanges, bindings or a dead-letter exchange, because there are none: the leader publishes straight
to the queue, mandatory, through the default exchange; an event that cannot be applied is parked in MySQL, in its order.
"""

from collections.abc import Callable
from typing import Final

from kernel import amqp_topology
from kernel.amqp_door import PERSISTENT, BrokerFacts, read_broker_facts
from kernel.doctor import Finding, Severity, Untold, judged, version_tuple
from kernel.settings import Settings
from kernel.settings_watch import StoreCheck

VERSION_MIN: Final = (3, 10)
HEARTBEAT_S_MAX: Final = 15
SHARD: Final = 0
"""The only shard, until orders over several shards are built."""


async def check_rabbitmq(settings: Settings, *, name: str) -> list[Finding]:
    """Every finding about the broker, asked on connections of their own; raises StoreUnavailable where it is away."""
    return judge_rabbitmq(await read_broker_facts(settings, SHARD, name=name), SHARD)


def watched_rabbitmq(settings: Settings, name: str, connections: Callable[[], int]) -> StoreCheck:
    """The check again and again; `connections` counts those that the process has made for its work."""
    return StoreCheck("rabbitmq", lambda: check_rabbitmq(settings, name=f"{name}.settings"), connections)


def judge_rabbitmq(facts: BrokerFacts, shard: int) -> list[Finding]:
    """The rules."""
    return [
        judged(
            "rabbitmq.version",
            facts.version,
            lambda version: version_tuple(version) >= VERSION_MIN,
            wanted="3.10 or later",
            why="older quorum queues keep no order of what comes back, and lack the limits the queue is declared with",
            mend="upgrade the broker",
        ),
        _queue(facts, shard),
        judged(
            "rabbitmq.heartbeat",
            facts.heartbeat_s,
            lambda seconds: 0 < seconds <= HEARTBEAT_S_MAX,
            shown=f"{facts.heartbeat_s} s",
            wanted=f"1 to {HEARTBEAT_S_MAX} s",
            why="a leader whose link is dead must notice before the broker gives its lock to another",
            mend="set STOCKGATE_AMQP_HEARTBEAT_S to 3",
        ),
        judged(
            "rabbitmq.separate_connections",
            facts.separate_connections,
            lambda separate: separate,
            shown="separate" if facts.separate_connections else "shared",
            wanted="publishing and consuming have a connection each",
            why="a broker short of memory stops reading from who publishes, and acknowledgements would stop with it",
            mend="kernel/amqp_door.py must connect anew for each; a proxy must not join connections",
        ),
        judged(
            "rabbitmq.persistent_messages",
            facts.delivery_mode,
            lambda mode: mode == PERSISTENT,
            shown="persistent" if facts.delivery_mode == PERSISTENT else f"delivery mode {facts.delivery_mode}",
            wanted="persistent",
            why="other messages need not outlive a restart of the broker",
            mend="kernel/amqp_door.py must publish with delivery mode 2",
        ),
    ]


def _queue(facts: BrokerFacts, shard: int) -> Finding:
    name = amqp_topology.log_queue(shard)
    # The broker repeats its own code in front of its words.
    said = facts.queue_detail.rpartition(" - ")[2]
    shown = {"right": f"{name} is as it must be", "missing": f"{name} is not there yet"}
    untold = Untold(
        "let the account configure the log queue, only then the broker compares it: "
        rf"`rabbitmqctl set_permissions -p <vhost> <user> '^sg\.[0-9]+\.log$' <write> <read>`; {said}"
    )
    wanted = ", ".join(
        f"{argument} {str(value).lower()}" for argument, value in amqp_topology.LOG_QUEUE_ARGUMENTS.items()
    )
    return judged(
        "rabbitmq.queue",
        untold if facts.queue == "not_told" else facts.queue,
        lambda state: state == "right",
        shown=shown.get(facts.queue, said),
        wanted=f"durable, {wanted}",
        why="only such a queue has a message on disk when it confirms it, refuses instead of dropping, and keeps the order",
        mend="the leader or the persist worker makes it when it starts"
        if facts.queue == "missing"
        else f"let the persist worker empty it, then `rabbitmqctl delete_queue -p <vhost> {name} --if-empty`: "
        "leader and worker make it anew",
        severity=Severity.WARNING if facts.queue == "missing" else Severity.DANGEROUS,
    )
