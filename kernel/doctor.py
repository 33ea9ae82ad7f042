"""What a check of a server's settings finds: what is, what must be, why, and how to mend it.

The rules stand beside the stores in `inventory/doctor_*.py`; this is the form of what they say. A *dangerous* finding keeps
a process from becoming ready: with it a promise that was given could be broken. A *warning* does not. What a server does
not tell is `unknown` and keeps nobody from anything: an account without a right is no proof of a wrong setting.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from kernel import limits

Fact = TypeVar("Fact")

UNTOLD: Final = "not told"


class Status(StrEnum):
    """How one setting stands."""

    OK = "ok"
    WRONG = "wrong"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """What a wrong setting means."""

    DANGEROUS = "dangerous"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Untold:
    """In place of a fact that the server keeps from us. `mend` is how to let it tell."""

    mend: str


class Finding(msgspec.Struct, frozen=True):
    """One setting. `name` is stable: alerts, pages and tests use it."""

    name: str
    status: Status
    severity: Severity
    found: str
    wanted: str
    why: str
    mend: str
    """The command or the line of configuration; for `unknown` what right is missing. Empty where all is well."""

    @property
    def dangerous(self) -> bool:
        """Whether it keeps a process from being ready."""
        return self.status is Status.WRONG and self.severity is Severity.DANGEROUS

    @property
    def sentence(self) -> str:
        """The finding for somebody who reads one line of it."""
        if self.status is Status.OK:
            return self.found
        return f"{self.found}, must be {self.wanted}: {self.mend}"


def judged(
    name: str,
    fact: Fact | Untold,
    good: Callable[[Fact], bool],
    *,
    wanted: str,
    why: str,
    mend: str,
    shown: str | None = None,
    severity: Severity = Severity.DANGEROUS,
) -> Finding:
    """Judge one fact; `shown` is how a person reads it where its own text would not do."""
    if isinstance(fact, Untold):
        return Finding(name, Status.UNKNOWN, severity, UNTOLD, wanted, why, fact.mend)
    status = Status.OK if good(fact) else Status.WRONG
    found = str(fact) if shown is None else shown
    return Finding(name, status, severity, found, wanted, why, "" if status is Status.OK else mend)


def unreachable(store: str, detail: str, *, mend: str) -> Finding:
    """The finding in place of all others of a server that does not answer."""
    why = "nothing can be said about the settings of a server that does not answer"
    return Finding(f"{store}.answers", Status.WRONG, Severity.DANGEROUS, detail, "answers", why, mend)


def version_tuple(text: str) -> tuple[int, ...]:
    """`10.11.6-MariaDB-0+deb12u1` as (10, 11, 6); what is no number ends it."""
    numbers: list[int] = []
    for part in text.split("-", maxsplit=1)[0].split("~", maxsplit=1)[0].split("+", maxsplit=1)[0].split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def clock_finding(store: str, skew_ms: int) -> Finding:
    """This host's clock against a server's. `skew_ms` is what the time of the exchange cannot explain."""
    return judged(
        f"clock.{store}",
        skew_ms,
        lambda skew: abs(skew) <= limits.CLOCK_SKEW_MS_MAX,
        shown=f"{skew_ms:+d} ms",
        wanted=f"within {limits.CLOCK_SKEW_MS_MAX} ms of this host",
        why="a hold's due time is made by one clock and judged by others: apart, buyers lose time or goods stay held",
        mend="let all hosts follow one source of time: `timedatectl set-ntp true`, then `chronyc tracking` on each",
    )


def clock_skew_ms(server_ms: int, asked_ms: int, answered_ms: int) -> int:
    """How far a server's clock lies outside of the time in which it was asked; 0 within it. All UTC epoch ms."""
    if server_ms < asked_ms:
        return server_ms - asked_ms
    return max(0, server_ms - answered_ms)
