"""What a caller can ask for. Sent as written: the field names are the contract's."""

from typing import Literal

import msgspec


class Line(msgspec.Struct, frozen=True):
    """A key and a quantity in units of stock, 1 to 1,000,000."""

    inventory_key: str
    qty: int


class Reserve(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op", tag="reserve"):
    """Hold stock for an order, all lines or none."""

    order_id: str
    lines: list[Line]
    ttl_seconds: int | None = None
    buyer_id: str | None = None


class Confirm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op", tag="confirm"):
    """The order is paid. `lines` names some of its keys, None means all."""

    order_id: str
    lines: list[str] | None = None


class Release(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op", tag="release"):
    """Give back what is held and not paid."""

    order_id: str
    reason: Literal["cancelled", "payment_failed", "risk"]
    lines: list[str] | None = None


class Consume(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op", tag="consume"):
    """Handed over or shipped."""

    order_id: str
    lines: list[str] | None = None


class Return(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op", tag="return"):
    """Cancelled after payment, not yet handed over."""

    order_id: str
    reason: str
    lines: list[str] | None = None


class Extend(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="op", tag="extend"):
    """Hold for longer, counted from now."""

    order_id: str
    ttl_seconds: int


Operation = Reserve | Confirm | Release | Consume | Return | Extend
