"""Why a call has no answer. What the service decided, a refusal included, is a value and never one of these."""

from .answers import Problem


class ClientError(Exception):
    """The call has no answer. `problem` is the last body that said so, if one came."""

    def __init__(self, message: str, problem: Problem | None = None) -> None:
        super().__init__(message)
        self.problem = problem


class OutcomeUnknown(ClientError):
    """The deadline came and nobody knows whether it was done. Call again with the same id; never undo."""


class NotExecuted(ClientError):
    """The deadline came and it is certain that no attempt did anything."""


class Unauthorized(ClientError):
    """401: the key is missing, wrong or expired."""


class Forbidden(ClientError):
    """403: outside the key's scopes or its inventory-key prefix."""


class BadRequest(ClientError):
    """400, 405, 413, 422, …: the request itself is wrong, a repeat will not help."""


class BadReply(ClientError):
    """What came back is not an answer of this service."""
