"""Every refusal that a caller can hear, as RFC 9457 `application/problem+json` with a stable code to branch on."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from kernel import limits

CONTENT_TYPE: Final = "application/problem+json"

_RESERVED: Final = frozenset({"type", "title", "status", "code", "detail", "instance"})


Repeat = Literal["as it is", "mended"]
"""What may succeed: the same call later, or only another one. No repeat ever does harm: an id is done once."""


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One row of the catalogue, from which `docs/errors.md` and the OpenAPI document are made.

    `when`: what has happened, as a sentence. `advice`: what the caller should do. `repeat`: which repeat may succeed.
    """

    status: int
    title: str
    when: str
    advice: str
    repeat: Repeat = "mended"


CATALOGUE: Final[dict[str, ProblemKind]] = {
    # The request itself.
    "MALFORMED_HTTP": ProblemKind(
        400,
        "Not HTTP",
        "What came is no HTTP/1.1 request: its first line, a header or the framing of its body is broken.",
        "Look at the HTTP client, or at what stands between; most often a Content-Length is wrong.",
    ),
    "MALFORMED_JSON": ProblemKind(
        400,
        "The body is not JSON",
        "The body is empty, no JSON in UTF-8, has NaN or Infinity, or has a name twice in one object.",
        "Send one JSON value in UTF-8 whose objects have each name once.",
    ),
    "UNAUTHORIZED": ProblemKind(
        401,
        "No valid API key",
        "There is no key, or it is not known or has expired. All of these answer alike.",
        "Send `Authorization: Bearer <key>` with a key in force.",
    ),
    "FORBIDDEN": ProblemKind(
        403,
        "This key may not do that",
        "The key lacks the scope of the call, or is confined to a prefix that an inventory key does not have.",
        "Use a key with the scope or prefix that is named.",
    ),
    "NOT_FOUND": ProblemKind(404, "Nothing is here", "No call has this path.", "Check the path."),
    "METHOD_NOT_ALLOWED": ProblemKind(
        405,
        "Not with this method",
        "The path exists, but not with this method.",
        "Use a method named in `allowed` and in the header `Allow`.",
    ),
    "REQUEST_TIMEOUT": ProblemKind(
        408,
        "The request came too slowly",
        f"The request's head or body was not complete after {limits.HEAD_READ_MS_MAX // 1000} s. Nothing was done.",
        "Send it again on a new connection; this one is closed.",
        "as it is",
    ),
    "BODY_TOO_LARGE": ProblemKind(
        413,
        "The body is too large",
        f"The body has more than {limits.BODY_BYTES_MAX:,} bytes ({limits.OPERATIONS_BODY_BYTES_MAX:,} for operations).",
        "Split the request; the connection is closed.",
    ),
    "UNSUPPORTED_MEDIA_TYPE": ProblemKind(
        415,
        "Not in this form",
        "The body has a Content-Encoding, or a Content-Type that says it is something else than JSON.",
        "Send plain JSON as `application/json`, without an encoding.",
    ),
    "INVALID_REQUEST": ProblemKind(
        422,
        "The request is not valid",
        "The body is JSON, but a field is missing, unknown, of a wrong type or outside its bounds; or a name in the path "
        "or the query is.",
        "Mend what `errors` names by path.",
    ),
    "TOO_MANY_REQUESTS": ProblemKind(
        429,
        "Too many requests",
        "The API key has used up its limit of requests per second; or MySQL decides (db mode), and too many operations wait "
        "for it, in all or for one inventory key. Nothing was done.",
        "Wait as long as `Retry-After` says.",
        "as it is",
    ),
    "HEAD_TOO_LARGE": ProblemKind(
        431,
        "The request's head is too large",
        f"The head has more than {limits.HEAD_BYTES_MAX:,} bytes or {limits.HEADERS_MAX} headers.",
        "Send fewer or shorter headers, or a shorter path; the connection is closed.",
    ),
    # Orders.
    "UNKNOWN_ORDER": ProblemKind(
        404,
        "No such order",
        "No order of the caller's tenant has this id, or it has lines outside the key's prefix.",
        "Check the order id; orders of other tenants are unknown too.",
    ),
    "INSUFFICIENT_STOCK": ProblemKind(
        409,
        "Not enough stock",
        "At least one line asks for more than is available, or an operator's change takes more than there is. "
        "No line was held.",
        "Ask for less; `lines` names what is short and what is left.",
        "as it is",
    ),
    "ORDER_CONFLICT": ProblemKind(
        409,
        "Another order has this id",
        "The order id is taken by an order with other lines or another buyer; `differs` says which.",
        "Use a new order id; an order's lines never change.",
    ),
    "ORDER_CLOSED": ProblemKind(
        409,
        "The order has ended",
        "The order that is to be reserved existed and has no open line any more.",
        "Use a new order id.",
    ),
    "ILLEGAL_TRANSITION": ProblemKind(
        409,
        "The order does not allow this",
        "A line is in a state from which the wanted move does not lead; `order_status`, `wanted` and `lines` say more.",
        "Read the order and decide anew.",
    ),
    "HOLD_EXPIRED": ProblemKind(
        409,
        "The hold has expired",
        "The hold ended before the call came, so the stock is back in sale.",
        "Reserve again under a new order id.",
    ),
    "BUYER_LIMIT": ProblemKind(
        409, "The buyer's limit is reached", "The buyer would hold more of the key than it allows.", "Ask for less."
    ),
    "SALE_CLOSED": ProblemKind(
        409,
        "The sale is not open",
        "The call came outside the hours of the key's sale.",
        "Come back within its hours.",
        "as it is",
    ),
    # Inventory.
    "UNKNOWN_INVENTORY_KEY": ProblemKind(
        404,
        "No such inventory key",
        "At least one inventory key does not exist; `inventory_keys` names them.",
        "Create it first, or check its spelling.",
    ),
    "VERSION_CONFLICT": ProblemKind(
        409,
        "Somebody changed it first",
        "An operator has changed the key since the version that the caller named.",
        "Read the key and decide anew.",
    ),
    "REQUEST_CONFLICT": ProblemKind(
        409,
        "Another request has this number",
        "The `request_no` was used before for something else, or the key exists with other properties.",
        "Use a new request number.",
    ),
    "QUANTITY_LIMIT": ProblemKind(
        409,
        "The quantity would be too large",
        "A quantity of the key would leave the range in which it can be counted exactly.",
        "Keep every quantity below 2^52.",
    ),
    # Operators.
    "UNKNOWN_TASK": ProblemKind(404, "No such task", "No task has this number.", "Check the id."),
    "SWITCH_RUNNING": ProblemKind(
        409,
        "A switch is under way",
        "Another change of the shard's mode has begun and not ended; `switch` is its id. Nothing was changed.",
        "Wait for it (`GET /ops/mode`), or give it up (`DELETE /ops/mode/switch`) while that is possible.",
        "as it is",
    ),
    "SWITCH_TOO_LATE": ProblemKind(
        409,
        "Too late to give the switch up",
        "The switch has gone so far that it can only be finished: CLOSE is published, or the epoch is being opened.",
        "Wait until it is done, then switch back.",
    ),
    "NO_SWITCH": ProblemKind(
        404,
        "No switch is under way",
        "There is nothing to give up.",
        "`GET /ops/mode` says who decides.",
    ),
    # Ours. `outcome` says whether anything was done; a repeat with the same id is always safe.
    "INTERNAL_ERROR": ProblemKind(
        500,
        "Something is broken here",
        "Something happened that nobody foresaw; whether the call was executed is not known.",
        "Repeat with the same id, then tell the operators the request id.",
        "as it is",
    ),
    "NOT_IMPLEMENTED": ProblemKind(501, "This is not built", "The call is planned, not built.", "Do without it."),
    "UNAVAILABLE": ProblemKind(
        503,
        "Not available now",
        "A store could not be asked or did not answer in time, too much is waiting, there are too many connections, or "
        "the process is shutting down.",
        "Repeat with the same id after `Retry-After`; after `outcome: unknown` the repeat says what happened.",
        "as it is",
    ),
    "SHARD_CLOSED": ProblemKind(
        503,
        "The shard is changing hands",
        "Nobody decides for the shard at this moment. Nothing was done.",
        "Repeat with the same id after `Retry-After`.",
        "as it is",
    ),
    "KEY_FROZEN": ProblemKind(
        503,
        "The key is held",
        "An inventory key is held because its stores disagree. Nothing was done.",
        "Repeat later; an operator has to look at it first.",
        "as it is",
    ),
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
