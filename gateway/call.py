"""One HTTP call on its way through the gateway, and the endpoint that answers it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypedDict, TypeVar

import msgspec

from gateway.body import Receive, read_body
from gateway.replies import Reply
from gateway.requests import MalformedBody, check_media_type, decode, decode_query
from inventory.batcher import Batcher
from inventory.catalogue import Catalogue
from inventory.confirmations import Confirmations
from inventory.hot_path import HotPath
from inventory.leader import Leader
from inventory.shard_state import ShardWatch
from inventory.status import Overview
from kernel import limits
from kernel.auth import KeyRing, Principal
from kernel.metrics import Metrics
from kernel.problems import Problem
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from kernel.settings_watch import SettingsWatch

Body = TypeVar("Body")

OPEN: Final[frozenset[str]] = frozenset()
"""Scopes of an endpoint that asks for no key."""


class Lifecycle:
    """How far the process is in its life, told between the server and the application."""

    def __init__(self) -> None:
        self.draining = False
        """Asked to end: not ready any more."""
        self.cut_short = 0
        """Calls that were accepted, and cancelled because the time for ending was over."""
        self.failed = asyncio.Event()
        """Something that must not end has ended; `failure` says how."""
        self.failure: BaseException | None = None

    def fail(self, failure: BaseException) -> None:
        """Note the first failure."""
        self.failure = self.failure or failure
        self.failed.set()


class State(TypedDict):
    """What the lifespan opens and every call may use."""

    settings: Settings
    lifecycle: Lifecycle
    keys: KeyRing
    batcher: Batcher
    hot_path: HotPath
    watch: ShardWatch
    confirmations: Confirmations
    catalogue: Catalogue
    overview: Overview
    redis: RedisDoor
    metrics: Metrics
    leader: Leader
    settings_watch: SettingsWatch


class Call:
    """One call: who asks, in which words, and what it may use."""

    __slots__ = (
        "announced",
        "endpoint",
        "headers",
        "names",
        "principal",
        "query",
        "receive",
        "request_id",
        "state",
        "trace_id",
    )

    principal: Principal

    def __init__(self, state: State, receive: Receive, endpoint: "Endpoint", names: tuple[str, ...]) -> None:
        self.state = state
        self.receive = receive
        self.endpoint = endpoint
        self.names = names
        """The decoded values of the template's braces, in their order."""
        self.request_id = ""
        self.trace_id = ""
        self.announced: bytes | None = None
        """The Content-Length header."""
        self.headers: Sequence[tuple[bytes, bytes]] = ()
        self.query = b""
        """What stands behind the question mark; only endpoints with a type for it look at it."""

    async def body(self) -> bytes:
        """The whole body within its bounds; raises what `read_body` raises."""
        return await read_body(
            self.receive, self.endpoint.body_bytes_max, limits.BODY_READ_MS_MAX / 1000, self.announced
        )

    async def decoded(self, decoder: msgspec.json.Decoder[Body], *, empty: bytes = b"") -> Body:
        """The body as the decoder's type; `empty` stands for no body at all. Raises MalformedBody and InvalidBody too.

        What the headers say of the body is looked at only where it is no JSON: whoever sends JSON under another name, as
        a command line does when nothing is said, is understood.
        """
        return self.decode(decoder, await self.body(), empty=empty)

    def decode(self, decoder: msgspec.json.Decoder[Body], body: bytes, *, empty: bytes = b"") -> Body:
        """A body that has been read, in the same way."""
        try:
            return decode(decoder, body or empty)
        except MalformedBody:
            check_media_type(self.headers)
            raise

    def queried(self, kind: type[Body]) -> Body:
        """The query as the endpoint's type; raises InvalidBody."""
        return decode_query(kind, self.query)

    def check_prefix(self, inventory_keys: "list[str]") -> None:
        """Raise Problem FORBIDDEN if the caller is confined to a prefix that one of the keys does not have."""
        prefix = self.principal.prefix
        if prefix:
            for key in inventory_keys:
                if not key.startswith(prefix):
                    raise Problem("FORBIDDEN", f"this key may only use inventory keys that begin with {prefix!r}")


Handle = Callable[[Call], Awaitable[Reply]]


@dataclass(frozen=True)
class Endpoint:
    """One row of the contract: where it is, who may call it, what answers it and what its document says.

    `scopes`: one of them is enough, none means open. `problems` are the codes of its refusals beside those that every
    endpoint has.
    """

    method: Literal["GET", "POST", "PUT", "DELETE"]
    template: str
    scopes: frozenset[str]
    handle: Handle
    summary: str
    takes: Any = None
    """The msgspec type of the body, None without one."""
    gives: dict[int, Any] = field(default_factory=dict[int, Any])
    """Status to msgspec type, for 2xx; None for a body that is not JSON."""
    problems: tuple[str, ...] = ()
    query: Any = None
    """The msgspec type of the query, None where none is looked at."""
    changes_stock: bool = False
    body_bytes_max: int = limits.BODY_BYTES_MAX
