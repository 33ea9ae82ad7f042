"""Names in Redis. One shard's names share one hash slot, `{sg:N}`, and all but the register carry the epoch.

A new epoch begins with empty names, so nothing that an older one left can be taken for its own. Inventory keys, tenants
and ids are appended last and are never parsed back out of the hash tag: braces and slashes in them are harmless, for
Redis hashes only what stands between the first `{` and the next `}`.
"""

from zlib import crc32


def shard_of(inventory_key: str, shards: int) -> int:
    """The shard that decides about a key: `crc32(inventory_key) % shards`."""
    return crc32(inventory_key.encode("ascii")) % shards


def register(shard: int) -> str:
    """The highest epoch ever drawn for the shard in this Redis; the only name without an epoch."""
    return f"{{sg:{shard}}}:register"


def confirmed_channel(shard: int) -> str:
    """The channel on which the leader names confirmed entries."""
    return f"{{sg:{shard}}}:confirmed"


class EpochKeys:
    """The names of one shard in one epoch."""

    __slots__ = ("due", "epoch", "filter", "head", "log", "opened", "prefix", "settled", "shard")

    def __init__(self, shard: int, epoch: int) -> None:
        self.shard = shard
        self.epoch = epoch
        self.prefix = f"{{sg:{shard}}}:{epoch}:"
        self.head = self.prefix + "head"
        """Hash: fence, term, m, digest, confirmed_m, evicted_m, opened_ms, grace_ms, appended_bytes, confirmed_bytes,
        genesis, filter."""
        self.log = self.prefix + "log"
        """Stream: entry `m-0` with fields d (digest), e (changes, msgpack), b (bytes appended so far)."""
        self.opened = self.prefix + "opened"
        """Set of the inventory keys loaded in this epoch."""
        self.due = self.prefix + "due"
        """Sorted set of orders with an open hold, by due time in ms."""
        self.settled = self.prefix + "settled"
        """Sorted set of records that may leave (`o:…` and `q:…` member names), by the ms of their last change."""
        self.filter = self.prefix + "filter"
        """String of bits: the orders that MySQL may know and Redis does not. Complete where the head's `filter` is 1."""

    def balance(self, inventory_key: str) -> str:
        """Hash: available, reserved, sold, consumed, locked, seq, version, and frozen = 1 while the key is held."""
        return f"{self.prefix}k:{inventory_key}"

    def order(self, tenant: str, order_id: str) -> str:
        """The order record. A tenant has no slash, so the name is unambiguous."""
        return f"{self.prefix}o:{tenant}/{order_id}"

    def request(self, tenant: str, request_no: str) -> str:
        """The record of an operator's change (ADJUST, LOCK, UNLOCK)."""
        return f"{self.prefix}q:{tenant}/{request_no}"
