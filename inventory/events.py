"""The log's wire format: changes as the scripts append them, messages as the leader publishes them.

An entry's payload is a msgpack array of changes exactly as Lua packed it; nobody re-encodes it, because the digest chain
runs over its bytes. `digest(m) = sha1(digest(m-1) + payload)`, in hex; `digest(0)` is `genesis`.
"""

import hashlib
from enum import IntEnum

import msgspec

from inventory.moves import Move


class Event(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a change did to one key. Deltas and after-image are in units of stock; (inventory_key, seq) is unique for ever.

    `state` is the line's state after it (0 for operators' changes); `qty` the line's quantity, or the signed quantity of an
    operator's change; `version` the key's inventory_version after it; `position` the line's place in its order, from 1.
    """

    inventory_key: str
    seq: int
    version: int
    state: int
    qty: int
    position: int
    d_available: int
    d_reserved: int
    d_sold: int
    d_consumed: int
    d_locked: int
    available: int
    reserved: int
    sold: int
    consumed: int
    locked: int


class Change(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One accepted operation with an event for each line it moved. Times are UTC epoch ms by Redis' clock."""

    kind: Move
    tenant: str
    ref: str
    at_ms: int
    trace_id: str
    actor: str
    reason: str
    fingerprint: str
    due_ms: int
    """Stored due time of the order, 0 for operators' changes."""
    buyer_id: str
    line_count: int
    """Lines of the whole order, 0 for operators' changes."""
    open_lines: int
    """Lines of the order still RESERVED after this change."""
    created_ms: int
    events: list[Event]


class MessageType(IntEnum):
    """What a message of the shard's queue says."""

    ENTRIES = 1
    TERM = 2
    CLOSE = 3


class LogMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One message of the shard's queue.

    ENTRIES: entries `first_m`, `first_m + 1`, … with their digests and payloads. TERM: `term` begins. CLOSE: epoch `epoch`
    ends once `after_m` is applied, and `next_mode` follows.
    """

    version: int
    type: MessageType
    shard: int
    epoch: int
    term: int
    first_m: int = 0
    entries: list[tuple[str, bytes]] = []
    after_m: int = 0
    next_mode: str = ""


WIRE_VERSION = 1

_changes_decoder = msgspec.msgpack.Decoder(list[Change])
_message_decoder = msgspec.msgpack.Decoder(LogMessage)
_encoder = msgspec.msgpack.Encoder()


def genesis(shard: int, epoch: int) -> str:
    """The digest before the first entry of an epoch."""
    return hashlib.sha1(f"stockgate/{shard}/{epoch}".encode(), usedforsecurity=False).hexdigest()


def chain(digest: str, payload: bytes) -> str:
    """The digest of the entry that follows `digest` with this payload."""
    return hashlib.sha1(digest.encode() + payload, usedforsecurity=False).hexdigest()


def decode_changes(payload: bytes) -> list[Change]:
    """Decode an entry; raises msgspec.DecodeError or ValidationError on anything malformed."""
    return _changes_decoder.decode(payload)


def decode_message(body: bytes) -> LogMessage:
    """Decode a message; raises msgspec.DecodeError or ValidationError on anything malformed."""
    return _message_decoder.decode(body)


def encode_message(message: LogMessage) -> bytes:
    """Encode a message for the shard's queue."""
    return _encoder.encode(message)


class Naming(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the leader publishes on `redis_keys.confirmed_channel`: entries now confirmed, as (m, digest)."""

    epoch: int
    entries: list[tuple[int, str]]


def encode_naming(naming: Naming) -> bytes:
    """Encode a naming for the channel."""
    return _encoder.encode(naming)


_naming_decoder = msgspec.msgpack.Decoder(Naming)


def decode_naming(body: bytes) -> Naming:
    """Decode a naming; raises msgspec.DecodeError or ValidationError on anything malformed."""
    return _naming_decoder.decode(body)
