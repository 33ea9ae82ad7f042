"""What callers may send, as msgspec types: they decode the requests and they are the OpenAPI document.

Every type forbids fields it does not know, numbers are whole and bounded, and names follow the patterns below.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta

from kernel import limits
from kernel.problems import Problem

# `(?!\n)$` because Python's `$` alone would let a line feed at the end pass; in other dialects it changes nothing.
ID_PATTERN: Final = r"^[!-~]+(?!\n)$"
INVENTORY_KEY_PATTERN: Final = r"^[!-~](?:[ -~]*[!-~])?(?!\n)$"
TENANT_PATTERN: Final = r"^[!-.0-~]+(?!\n)$"
TEXT_PATTERN: Final = r"^[^\x00-\x1f\x7f]+(?!\n)$"

Id = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.ORDER_ID_CHARS_MAX,
        pattern=ID_PATTERN,
        description="1 to 64 printable ASCII characters without spaces.",
    ),
]
InventoryKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.INVENTORY_KEY_CHARS_MAX,
        pattern=INVENTORY_KEY_PATTERN,
        description="1 to 128 printable ASCII characters; spaces inside, none at the ends. Compared byte for byte.",
    ),
]
Qty = Annotated[int, Meta(ge=1, le=limits.QTY_MAX, description="Units of stock.")]
Delta = Annotated[
    int,
    Meta(
        ge=-limits.QUANTITY_TOTAL_MAX,
        le=limits.QUANTITY_TOTAL_MAX,
        description="Units of stock, not 0.",
        extra_json_schema={"not": {"const": 0}},
    ),
]
InitQuantity = Annotated[int, Meta(ge=0, le=limits.QUANTITY_TOTAL_MAX, description="Units of stock.")]
TtlSeconds = Annotated[
    int, Meta(ge=1, le=limits.TTL_SECONDS_MAX, description="Seconds from now; the service's own bound may be lower.")
]
Version = Annotated[int, Meta(ge=0, le=limits.EXACT_INTEGER_MAX)]
Text = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.REASON_CHARS_MAX,
        pattern=TEXT_PATTERN,
        description="Free text without control characters.",
    ),
]
Tenant = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.TENANT_CHARS_MAX,
        pattern=TENANT_PATTERN,
        description="Whose order; the caller's own tenant where absent.",
    ),
]
Keys = Annotated[
    list[InventoryKey],
    Meta(min_length=1, max_length=limits.LINES_PER_ORDER_MAX, description="Only these lines; all where absent."),
]


class Request(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A request body. `omit_defaults` belongs to the check for repeated names in `decode`."""


class ReserveLine(Request):
    """A key and how much of it. Two lines with one key are summed."""

    inventory_key: InventoryKey
    qty: Qty


class Reserve(Request):
    """Hold stock for an order, all lines or none."""

    order_id: Id
    lines: Annotated[list[ReserveLine], Meta(min_length=1, max_length=limits.LINES_PER_ORDER_MAX)]
    ttl_seconds: TtlSeconds | None = None
    buyer_id: Id | None = None


class Confirm(Request):
    """The order is paid."""

    lines: Keys | None = None


class Release(Request):
    """Give back what is held and not paid."""

    reason: Literal["cancelled", "payment_failed", "risk"]
    lines: Keys | None = None


class Consume(Request):
    """Handed over or shipped."""

    lines: Keys | None = None


class Return(Request):
    """Cancelled after payment, not yet handed over."""

    reason: Text
    lines: Keys | None = None


class Extend(Request):
    """Hold for longer."""

    ttl_seconds: TtlSeconds


# The same again as elements of `operations`, where `op` says which and the order's id stands in the body.


class ReserveOp(Reserve, tag_field="op", tag="reserve"):
    """Hold stock for an order, all lines or none."""


class ConfirmOp(Request, tag_field="op", tag="confirm"):
    """The order is paid."""

    order_id: Id
    lines: Keys | None = None


class ReleaseOp(Request, tag_field="op", tag="release"):
    """Give back what is held and not paid."""

    order_id: Id
    reason: Literal["cancelled", "payment_failed", "risk"]
    lines: Keys | None = None


class ConsumeOp(Request, tag_field="op", tag="consume"):
    """Handed over or shipped."""

    order_id: Id
    lines: Keys | None = None


class ReturnOp(Request, tag_field="op", tag="return"):
    """Cancelled after payment, not yet handed over."""

    order_id: Id
    reason: Text
    lines: Keys | None = None


class ExtendOp(Request, tag_field="op", tag="extend"):
    """Hold for longer."""

    order_id: Id
    ttl_seconds: TtlSeconds


OperationRequest = ReserveOp | ConfirmOp | ReleaseOp | ConsumeOp | ReturnOp | ExtendOp


class Operations(Request):
    """Up to 500 operations, each independent, in order. The elements are decoded one by one: a wrong one is its own."""

    operations: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=limits.OPERATIONS_PER_REQUEST_MAX)]


class CreateInventory(Request):
    """A new key. Its first quantity is an adjustment like any other."""

    inventory_key: InventoryKey
    item_id: Id
    inventory_mode: Literal["QTY"]
    request_no: Id
    init_quantity: InitQuantity = 0


class QueryInventory(Request):
    """Keys to read."""

    inventory_keys: Annotated[list[InventoryKey], Meta(min_length=1, max_length=limits.QUERY_KEYS_MAX)]


class Adjust(Request):
    """Stock that came or went. `base_inventory_version` refuses it if an operator has changed the key since."""

    delta: Delta
    request_no: Id
    reason: Text
    base_inventory_version: Version | None = None
    approval_no: Id | None = None


class LockUnlock(Request):
    """Stock to take out of sale, or to put back."""

    qty: Annotated[int, Meta(ge=1, le=limits.QUANTITY_TOTAL_MAX)]
    request_no: Id
    reason: Text


class Reconcile(Request):
    """A comparison of the stores: of some keys, or of the whole shard.

    `dry_run` repairs nothing; without it a `reason` is needed, which goes into the audit table.
    """

    keys: Annotated[list[InventoryKey], Meta(min_length=1, max_length=limits.QUERY_KEYS_MAX)] | None = None
    shard: Annotated[int, Meta(ge=0, le=0)] = 0
    dry_run: bool = False
    reason: Text | None = None


Shard = Annotated[int, Meta(ge=0, le=0, description="The shard's number.")]


class SwitchMode(Request):
    """Who is to decide from now on: Redis (`hot`) or MySQL (`db`). The reason goes into the audit table."""

    mode: Literal["hot", "db"]
    reason: Text
    shard: Shard = 0


# What may stand behind the question mark. A value is never empty.

Limit = Annotated[int, Meta(ge=1, le=limits.PAGE_ROWS_MAX, description="Rows of one page.")]
_CURSOR: Final = "What the page before says; anything of another form is refused."
ActionsCursor = Annotated[str, Meta(pattern=r"^[0-9]{1,16}\.[0-9]{1,16}(?!\n)$", description=_CURSOR)]
TimelineCursor = Annotated[
    str,
    Meta(
        pattern=rf"^([0-9]{{1,16}}\.){{4}}[ -~]{{1,{limits.INVENTORY_KEY_CHARS_MAX}}}(?!\n)$",
        description=_CURSOR,
    ),
]


class ActionsQuery(Request):
    """Which of the operators' actions."""

    limit: Limit = limits.PAGE_ROWS_DEFAULT
    before: ActionsCursor = ""


class ModeQuery(Request):
    """Of which shard."""

    shard: Shard = 0


class AbortSwitchQuery(Request):
    """Why the switch that runs is given up, for the audit table; and of which shard."""

    reason: Text
    shard: Shard = 0


class ExplainKeyQuery(Request):
    """Which part of a key's timeline: the newest changes, or those before a seq."""

    limit: Limit = limits.PAGE_ROWS_DEFAULT
    before: Annotated[int, Meta(ge=1, le=limits.EXACT_INTEGER_MAX, description="Only changes of a lower seq.")] = (
        limits.EXACT_INTEGER_MAX
    )


class ExplainOrderQuery(Request):
    """Whose order, and which part of its timeline: the first changes, or those after the cursor."""

    tenant: Tenant = ""
    limit: Limit = limits.PAGE_ROWS_DEFAULT
    after: TimelineCursor = ""


class FieldError(msgspec.Struct, frozen=True):
    """Where in the body, as a JSON path, and what is wrong there."""

    path: str
    message: str


class MalformedBody(Exception):
    """The body is not JSON, or not JSON that has only one meaning."""


class InvalidBody(Exception):
    """The body is JSON but not what this call takes."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(f"{error.path}: {error.message}" for error in errors))
        self.errors = errors


LATER: Final = frozenset(
    {"reacquire", "voucher_rule", "per_buyer_limit", "sale_opens_at", "sale_closes_at"},
)
"""Fields of the contract that this version refuses by name."""

_JSON_TYPES: Final = frozenset({b"", b"application/json", b"text/json"})

Body = TypeVar("Body")
_encoder = msgspec.json.Encoder()
_UNKNOWN_FIELD: Final = re.compile(r"^Object contains unknown field `(.*?)`", re.DOTALL)


def decode(decoder: msgspec.json.Decoder[Body], body: bytes | msgspec.Raw) -> Body:
    """Decode a body; raises MalformedBody or InvalidBody. A name that stands twice in one object is malformed."""
    try:
        value = decoder.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidBody(_field_error(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedBody(str(error)) from None
    raw = bytes(body)
    # A decoder keeps one of two equal names. Where no string holds an escape, a body with as many quotes as what was
    # kept has held nothing else; all other bodies are read again by a slower parser that hands over every name.
    if b"\\" in raw or raw.count(b'"') != _encoder.encode(value).count(b'"'):
        _refuse_repeated_names(raw)
    return value


def decode_each(decoder: msgspec.json.Decoder[Body], body: bytes, elements: Sequence[msgspec.Raw]) -> list[Body] | None:
    """All elements of a body that was decoded into them; None where one is to be refused, for `decode` to say why.

    `body` holds nothing but one name and the elements, so that one count of quotes stands for all of them.
    """
    try:
        values = [decoder.decode(element) for element in elements]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if b"\\" in body or body.count(b'"') != 2 + _encoder.encode(values).count(b'"'):
        return None
    return values


def decode_query(kind: type[Body], query: bytes) -> Body:
    """Decode what stands behind the question mark; raises InvalidBody. A name may stand there once."""
    if len(query) > limits.QUERY_CHARS_MAX:
        raise InvalidBody(FieldError("query", f"longer than {limits.QUERY_CHARS_MAX} characters"))
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=bool(query), errors="strict")
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise InvalidBody(FieldError("query", "a name stands there twice"))
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        found = _field_error(str(error))
        raise InvalidBody(FieldError(found.path.replace("$", "query", 1), found.message)) from None
    except ValueError as error:
        raise InvalidBody(FieldError("query", str(error))) from None


def _refuse_repeated_names(body: bytes) -> None:
    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            names = [name for name, _ in pairs]
            twin = next(name for name in names if names.count(name) > 1)
            raise MalformedBody(f"the name {twin!r} stands twice in one object")
        return fields

    try:
        json.loads(body, object_pairs_hook=no_twins)
    except (ValueError, RecursionError) as error:
        raise MalformedBody(str(error)) from None


def _field_error(text: str) -> FieldError:
    message, _, path = text.rpartition(" - at `")
    path = path.removesuffix("`") if message else "$"
    message = message or text
    unknown = _UNKNOWN_FIELD.match(message)
    if unknown and unknown[1] in LATER:
        message = f"`{unknown[1]}` is not supported by this version"
    return FieldError(path, message)


def check_media_type(headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise Problem UNSUPPORTED_MEDIA_TYPE if the headers say that a body is encoded, or no JSON."""
    for name, value in headers:
        said = value.partition(b";")[0].strip().lower()
        if name == b"content-encoding" and said not in {b"", b"identity"}:
            raise Problem("UNSUPPORTED_MEDIA_TYPE", "a body may have no Content-Encoding")
        if name == b"content-type" and said not in _JSON_TYPES and not said.endswith(b"+json"):
            raise Problem("UNSUPPORTED_MEDIA_TYPE", "the body is no JSON, and its Content-Type says so")


def check_id(name: str, value: str) -> str:
    """An id out of a path; raises InvalidBody."""
    return _check(name, value, Id)


def check_inventory_key(value: str) -> str:
    """An inventory key out of a path; raises InvalidBody."""
    return _check("inventory_key", value, InventoryKey)


def _check(name: str, value: str, kind: Any) -> str:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidBody(FieldError(name, str(error))) from None
