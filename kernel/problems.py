"""Every refusal that a caller can hear, as RFC 9457 `application/problem+json` with a stable code to branch on."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

CONTENT_TYPE: Final = "application/problem+json"

_RESERVED: Final = frozenset({"type", "title", "status", "code", "detail", "instance"})


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One row of the catalogue: what a code means, and what the caller does about it."""

    status: int
    title: str
    advice: str


CATALOGUE: Final[dict[str, ProblemKind]] = {
    # The request itself.
    "MALFORMED_JSON": ProblemKind(400, "The body is not JSON", "Send JSON in UTF-8."),
    "UNAUTHORIZED": ProblemKind(401, "No valid API key", "Send `Authorization: Bearer <key>` with a key in force."),
    "FORBIDDEN": ProblemKind(403, "This key may not do that", "Use a key with the scope or prefix that is named."),
    "NOT_FOUND": ProblemKind(404, "Nothing is here", "Check the path."),
    "METHOD_NOT_ALLOWED": ProblemKind(405, "Not with this method", "Use a method named in `allowed`."),
    "REQUEST_TIMEOUT": ProblemKind(408, "The body came too slowly", "Send it again; nothing was done."),
    "BODY_TOO_LARGE": ProblemKind(413, "The body is too large", "Split the request."),
    "UNSUPPORTED_MEDIA_TYPE": ProblemKind(415, "Not in this form", "Send plain JSON without an encoding."),
    "INVALID_REQUEST": ProblemKind(422, "The request is not valid", "Mend what `errors` names by path."),
    "TOO_MANY_REQUESTS": ProblemKind(429, "Too many requests", "Wait as long as `Retry-After` says; nothing was done."),
    # Orders.
    "UNKNOWN_ORDER": ProblemKind(404, "No such order", "Check the order id; orders of other tenants are unknown too."),
    "INSUFFICIENT_STOCK": ProblemKind(409, "Not enough stock", "Ask for less; `lines` names what is short."),
    "ORDER_CONFLICT": ProblemKind(
        409, "Another order has this id", "Use a new order id; an order's lines never change."
    ),
    "ORDER_CLOSED": ProblemKind(409, "The order has ended", "Use a new order id."),
    "ILLEGAL_TRANSITION": ProblemKind(409, "The order does not allow this", "Read the order and decide anew."),
    "HOLD_EXPIRED": ProblemKind(409, "The hold has expired", "Reserve again under a new order id."),
    "BUYER_LIMIT": ProblemKind(409, "The buyer's limit is reached", "Ask for less."),
    "SALE_CLOSED": ProblemKind(409, "The sale is not open", "Come back within its hours."),
    # Inventory.
    "UNKNOWN_INVENTORY_KEY": ProblemKind(404, "No such inventory key", "Create it first, or check its spelling."),
    "VERSION_CONFLICT": ProblemKind(409, "Somebody changed it first", "Read the key and decide anew."),
    "REQUEST_CONFLICT": ProblemKind(409, "Another request has this number", "Use a new request number."),
    "QUANTITY_LIMIT": ProblemKind(409, "The quantity would be too large", "Keep every quantity below 2^52."),
    # Operators.
    "UNKNOWN_TASK": ProblemKind(404, "No such task", "Check the id."),
    "SWITCH_RUNNING": ProblemKind(409, "A switch is running", "Wait for it, or abort it."),
    # Ours. `outcome` says whether anything was done; a repeat with the same id is always safe.
    "INTERNAL_ERROR": ProblemKind(500, "Something is broken here", "Repeat with the same id, then tell the operators."),
    "NOT_IMPLEMENTED": ProblemKind(501, "This is not built", "Do without it."),
    "UNAVAILABLE": ProblemKind(503, "Not available now", "Repeat with the same id after `Retry-After`."),
    "SHARD_CLOSED": ProblemKind(503, "The shard is changing hands", "Repeat with the same id after `Retry-After`."),
    "KEY_FROZEN": ProblemKind(503, "The key is held", "Repeat later; an operator has to look at it first."),
}


class Problem(Exception):
    """A refusal or failure on its way to the caller.

    `detail` is for people. `extra` holds the code's own fields; 5xx have `outcome`, `not_executed` or `unknown`.
    """

    def __init__(self, code: str, detail: str = "", **extra: Any) -> None:
        """Raise KeyError for a code that is not in the catalogue, ValueError for fields that the standard has taken."""
        super().__init__(code, detail)
        kind = CATALOGUE[code]
        if not _RESERVED.isdisjoint(extra):
            raise ValueError(f"{code}: {sorted(_RESERVED & extra.keys())} belong to the standard")
        if kind.status >= 500 and extra.get("outcome") not in {"not_executed", "unknown"}:
            raise ValueError(f"{code}: a {kind.status} says whether it was executed")
        self.code = code
        self.status = kind.status
        self.title = kind.title
        self.detail = detail or kind.advice
        self.extra = extra

    def body(self, instance: str = "") -> bytes:
        """The problem as JSON; `instance` names the request."""
        fields: dict[str, Any] = {
            "type": f"urn:stockgate:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "code": self.code,
            "detail": self.detail,
        }
        if instance:
            fields["instance"] = instance
        return msgspec.json.encode(fields | self.extra)
