"""Failures of a store, translated once at each driver's door. Refusals of the domain are values, never exceptions."""

from typing import Final, Literal

Store = Literal["redis", "mysql", "rabbitmq"]
StoreOutcome = Literal["not_executed", "unknown"]


class StockgateError(Exception):
    """The root of everything that the doors raise."""


class StoreUnavailable(StockgateError):
    """A store could not be asked, or did not answer.

    `outcome` is `not_executed` only where that is proven: nothing was sent, or the server refused up front. Everything
    else is `unknown`: the effect may have happened or may still happen.
    """

    def __init__(self, store: Store, outcome: StoreOutcome, detail: str = "") -> None:
        super().__init__(f"{store}: {outcome}" + (f" ({detail})" if detail else ""))
        self.store: Store = store
        self.outcome: StoreOutcome = outcome
        self.detail = detail


class StoreRefused(StoreUnavailable):
    """The server answered that it will not do this now; proven not executed.

    `code` is the server's own word for Redis (`OOM`, `MISCONF`, `READONLY`, `LOADING`, `BUSY`, `NOAUTH`, …) and one of
    `DISK_FULL`, `READ_ONLY`, `PACKET_TOO_LARGE`, `ACCESS_DENIED`, `TOO_MANY_CONNECTIONS` for MySQL; for all of them
    `TLS_FAILED`: not encrypted, or the server is not who it should be, and so not spoken to. Within a
    MySQL transaction it means: this statement had no effect, and the transaction is rolled back.
    """

    def __init__(self, store: Store, code: str, detail: str = "") -> None:
        super().__init__(store, "not_executed", f"{code}: {detail}" if detail else code)
        self.code = code


class ScriptFailed(StockgateError):
    """A script or command was answered with an error that no retry mends: a bug, or a damaged key.

    A script that raised in its middle has kept what it wrote before: nothing is rolled back by Redis.
    """


class StatementError(StockgateError):
    """What MySQL proved about one statement. `errno` is the server's error number, `message` its text."""

    def __init__(self, errno: int, message: str) -> None:
        super().__init__(f"{errno}: {message}")
        self.errno = errno
        self.message = message


class DuplicateKey(StatementError):
    """A row with this key exists (1062, 1586). The caller reads it and compares; it never assumes that it is the same."""


class DataRejected(StatementError):
    """The server refuses this row's data: out of range, too long, a failed check, a missing reference, not null."""


class Retryable(StatementError):
    """The whole transaction is to be run again: deadlock, lock wait timeout, changed snapshot, killed while idle."""


class StatementFailed(StatementError):
    """The statement itself cannot run: a bug, or a missing migration."""


_CODES: Final[dict[type[StockgateError], str]] = {
    ScriptFailed: "SCRIPT_FAILED",
    DuplicateKey: "DUPLICATE_KEY",
    DataRejected: "DATA_REJECTED",
    Retryable: "RETRYABLE",
}


def failure_code(failure: StockgateError) -> str:
    """A word for what failed, from a bounded set: a refusal's own code, else the outcome, else the kind of failure."""
    if isinstance(failure, StoreRefused):
        return failure.code
    if isinstance(failure, StoreUnavailable):
        return failure.outcome.upper()
    return _CODES.get(type(failure), "STATEMENT_FAILED")
