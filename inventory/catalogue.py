"""Which keys exist and what they are: `inventory_config`, and the empty balance that every key begins with.

A key is created in one MySQL transaction, outside of the log. Its first stock comes afterwards as an ADJUST like any
other, so that in both stores a key's total is the sum of its adjustments.
"""

import hashlib
from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal, NamedTuple

import sql
from inventory.operations import fingerprint
from kernel.errors import DuplicateKey, Retryable
from kernel.mysql_door import Database
from kernel.redis_keys import shard_of

CREATE_ATTEMPTS_MAX: Final = 4

_INSERT_CONFIG: Final = sql.load("insert_inventory_config")
_INSERT_BALANCE: Final = sql.load("insert_empty_balance")
_SELECT_CONFIGS: Final = sql.load("select_inventory_configs")
_SELECT_ORIGIN: Final = sql.load("select_inventory_config_origin")


class NewKey(NamedTuple):
    """A key to create. `request_no` is unique per tenant among creations; `init_quantity` in units of stock."""

    inventory_key: str
    item_id: str
    inventory_mode: str
    init_status: str
    init_quantity: int
    tenant: str
    request_no: str
    created_by: str

    def fingerprint(self) -> str:
        """What must be the same in a repeat."""
        return fingerprint(self.inventory_key, self.item_id, self.inventory_mode, str(self.init_quantity))

    def adjust_request_no(self) -> str:
        """The request number of the ADJUST that brings the first stock.

        It holds a space, so no caller's own request number can ever be the same.
        """
        origin = f"{self.tenant}\0{self.request_no}\0{self.inventory_key}".encode()
        return "create " + hashlib.blake2b(origin, digest_size=16).hexdigest()


class Creation(Enum):
    """What a creation came to."""

    CREATED = "created"
    REPLAY = "replay"
    CONFLICT = "conflict"
    """The key or the request number is taken by another request."""


class Config(NamedTuple):
    """What a key is configured as: `QTY`, `SYS_GEN` or `EXT_POOL`; `READY`, `PENDING_IMPORT` or `PENDING_GEN`."""

    inventory_mode: Literal["QTY", "SYS_GEN", "EXT_POOL"]
    init_status: Literal["READY", "PENDING_IMPORT", "PENDING_GEN"]


class Catalogue:
    """The keys of one system. Every method raises what the door raises."""

    def __init__(self, database: Database, shards: int) -> None:
        self._database = database
        self._shards = shards

    async def create(self, key: NewKey) -> Creation:
        """Create the key with a balance of nothing, or find that it is there.

        After a failure with outcome `unknown` the same call tells what happened.
        """
        shard = shard_of(key.inventory_key, self._shards)
        for attempt in range(1, CREATE_ATTEMPTS_MAX + 1):
            try:
                async with self._database.transaction() as transaction:
                    await transaction.execute(_INSERT_CONFIG, _config_row(key, shard))
                    await transaction.execute(_INSERT_BALANCE, (key.inventory_key, shard))
            except DuplicateKey:
                return await self._compare(key)
            except Retryable:
                # Two creations of one key may deadlock on its duplicate; the loser finds the winner's row.
                if attempt == CREATE_ATTEMPTS_MAX:
                    raise
            else:
                return Creation.CREATED
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _compare(self, key: NewKey) -> Creation:
        rows = await self._database.fetch_all(_SELECT_ORIGIN, (key.inventory_key,))
        same = bool(rows) and tuple(rows[0]) == (key.tenant, key.request_no, key.fingerprint())
        return Creation.REPLAY if same else Creation.CONFLICT

    async def read_configs(self, inventory_keys: Sequence[str]) -> dict[str, Config]:
        """The configuration of those keys that exist."""
        if not inventory_keys:
            return {}
        rows = await self._database.fetch_all(_SELECT_CONFIGS, (tuple(inventory_keys),))
        return {inventory_key: Config(mode, status) for inventory_key, mode, status in rows}


def _config_row(key: NewKey, shard: int) -> tuple[str | int, ...]:
    return (
        key.inventory_key,
        shard,
        key.item_id,
        key.inventory_mode,
        key.init_status,
        key.init_quantity,
        key.tenant,
        key.request_no,
        key.fingerprint(),
        key.created_by,
    )
