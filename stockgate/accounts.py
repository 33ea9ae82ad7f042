"""Who may do what at the servers: one account for each kind of process, with only what that process does there.

The rights at MySQL stand in `sql/grants/<role>.sql`. Tests hold all of them against the scripts, statements and commands
that the code really uses, so that a right too many is noticed as well as one too few.
"""

from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote, urlsplit, urlunsplit

RoleName = Literal["gateway", "leader", "persist-worker", "reconciler", "operator"]

REDIS_USER: Final = "stockgate"

REDIS_COMMANDS: Final = (
    # What the door itself says.
    "auth",
    "client|setname",
    "select",
    "evalsha",
    "script|exists",
    "script|load",
    "subscribe",
    "xread",
    # What is said through it.
    "hget",
    "hgetall",
    "hmget",
    "ping",
    "pubsub|numsub",
    "sadd",
    "scan",
    "sscan",
    "time",
    "unlink",
    "xrange",
    "zrangebyscore",
    "zscan",
    # What the scripts say: they run with the rights of who calls them.
    "exists",
    "get",
    "getbit",
    "hdel",
    "hset",
    "publish",
    "set",
    "setbit",
    "sismember",
    "strlen",
    "type",
    "xadd",
    "xtrim",
    "zadd",
    "zrem",
    # What a process looks at before it calls itself ready. Passwords are not in the configuration, they are in the ACL.
    "acl|dryrun",
    "config|get",
    "info",
)
"""All that a process may say to Redis, in the words of `ACL SETUSER` without their plus."""

REDIS_RULE: Final = (
    "resetkeys",
    "~{sg:*}:*",
    "resetchannels",
    "&{sg:*}:confirmed",
    "-@all",
    *(f"+{command}" for command in REDIS_COMMANDS),
)
"""The application's account at Redis, without its password."""


@dataclass(frozen=True, slots=True)
class QueueRights:
    """Patterns of names in one virtual host, as `rabbitmqctl set_permissions` takes them."""

    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of process, and which servers it may speak to."""

    name: RoleName
    redis: bool
    queue: QueueRights | None

    @property
    def account(self) -> str:
        """Its name at MySQL and at RabbitMQ."""
        return f"stockgate_{self.name.replace('-', '_')}"


_LOG: Final = r"^sg\.[0-9]+\.log$"
_LEADS: Final = QueueRights(configure=r"^sg\.[0-9]+\.(log|leader)$", write=r"^amq\.default$", read="^$")

ROLES: Final[dict[RoleName, Role]] = {
    role.name: role
    for role in (
        # A gateway runs a candidate for the leadership.
        Role("gateway", redis=True, queue=_LEADS),
        Role("leader", redis=True, queue=_LEADS),
        Role("persist-worker", redis=False, queue=QueueRights(configure=_LOG, write="^$", read=_LOG)),
        Role("reconciler", redis=True, queue=None),
        # Whoever types `stockgate audit`, `doctor`, `repair` or `reconcile`; takes nothing from the queue. Only who may
        # declare a queue is told by the broker whether it has the arguments that it must have.
        Role("operator", redis=True, queue=QueueRights(configure=_LOG, write="^$", read="^$")),
    )
}


def with_login(url: str, user: str, password: str) -> str:
    """The same address for another account."""
    parts = urlsplit(url)
    address = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(user, safe='')}:{quote(password, safe='')}@{address}"))
