"""The two things a call can come to: done, or refused. Everything else is an exception."""

from typing import Generic, Literal, TypeVar

import msgspec

from .replies import ErrorLine

Value_co = TypeVar("Value_co", covariant=True)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An `application/problem+json` body (RFC 9457). Branch on `code`, never on text."""

    code: str
    status: int = 0
    type: str = ""
    title: str = ""
    detail: str = ""
    instance: str = ""
    outcome: Literal["not_executed", "unknown"] | None = None
    lines: list[ErrorLine] = []
    raw: msgspec.Raw = msgspec.Raw(b"{}")
    """The whole body as it came, for fields that only some codes have."""

    def field(self, name: str) -> object:
        """A field of the body that this type does not name, or None."""
        fields: dict[str, object] = msgspec.json.decode(self.raw, type=dict[str, object])
        return fields.get(name)


class Done(msgspec.Struct, Generic[Value_co], frozen=True):
    """The service did it, now or before. `durability` says what the answer promises, None where nothing changed."""

    value: Value_co
    replay: bool = False
    durability: str | None = None
    status: int = 200
    after_unknown: bool = False
    """An earlier attempt of this call may have done it: a `replay` is then this caller's own work."""


class Refused(msgspec.Struct, frozen=True):
    """The service decided no, and nothing has changed."""

    code: str
    status: int
    problem: Problem
    after_unknown: bool = False
    """An earlier attempt of this call may have been carried out: read the order before concluding anything."""


Answer = Done[Value_co] | Refused
"""What a call returns: match on `Done` and `Refused`, there is no third."""


class Unanswered(msgspec.Struct, frozen=True):
    """One of several operations that had no answer when the deadline came; the whole call still returned the others."""

    outcome: Literal["not_executed", "unknown"]
    problem: Problem | None = None


OperationResult = Done[Value_co] | Refused | Unanswered
"""One result of `operations`. Here `Refused` may also bear 403 or 422: what is wrong with this one alone."""
