"""One shard in a real Redis, driven through the real scripts as the gateways, loaders and leaders drive it."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from redis.exceptions import NoScriptError

import lua
from inventory import events
from inventory.moves import REQUEST_MOVES, LineState, Move, Quantities
from inventory.operations import CallHeader, Line, Operation, Reply, Result, fingerprint, lines_fingerprint
from kernel.redis_keys import EpochKeys, confirmed_channel, register

pack = msgspec.msgpack.encode
load = cache(lua.load)
LONG_MS = 900_000
TENANT = "shop"


class Shard:
    def __init__(self, client: Any, number: int, epoch: int = 1) -> None:
        self.client = client
        """A `redis.Redis`; its replies are taken apart by the tests themselves."""
        self.number = number
        self.names = EpochKeys(number, epoch)
        self.term = 1

    @property
    def genesis(self) -> str:
        return events.genesis(self.number, self.names.epoch)

    # --- scripts ---

    def run(self, name: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        script = load(name)
        try:
            return self.client.evalsha(script.sha, len(keys), *keys, *args)
        except NoScriptError:
            assert self.client.script_load(script.source) == script.sha
            return self.client.evalsha(script.sha, len(keys), *keys, *args)

    def open(self, *, grace_ms: int = 0) -> None:
        assert self.draw(grace_ms=grace_ms) == 0
        assert self.fence(0) == 0

    def draw(self, *, grace_ms: int = 0) -> int:
        keys = [self.names.head, register(self.number)]
        return self.run("open_head", keys, [self.names.epoch, self.term, self.genesis, grace_ms])

    def fence(self, value: int, *, term: int | None = None) -> int:
        return self.run("fence", [self.names.head], [self.term if term is None else term, value])

    def load_keys(self, rows: Sequence[Sequence[Any]]) -> int:
        balances = [self.names.balance(row[0]) for row in rows]
        return self.run("load_keys", [self.names.head, self.names.opened, *balances], [pack(rows)])

    def stock(self, **available: int) -> None:
        """Load keys with some stock, at seq 0."""
        rows = [[key, units, 0, 0, 0, 0, 0, 0] for key, units in available.items()]
        assert self.load_keys(rows) == len(rows)

    def load_orders(self, proof_m: int, orders: Sequence[Any] = (), requests: Sequence[Any] = ()) -> int:
        records = [self.names.order(o[0], o[1]) for o in orders] + [self.names.request(q[0], q[1]) for q in requests]
        keys = [self.names.head, self.names.due, self.names.settled, *records]
        return self.run("load_orders", keys, [pack([proof_m, orders, requests])])

    def call(
        self,
        *operations: Operation,
        script: str = "reserve",
        term: int = 0,
        reserve_max: int = 1 << 40,
        settle_max: int = 1 << 40,
        known: tuple[int, str] = (0, ""),
    ) -> Reply:
        header = CallHeader(self.names.epoch, term, reserve_max, settle_max, *known)
        packed = self.run(script, *self.call_parts(operations, header))
        return msgspec.msgpack.decode(packed, type=Reply)

    def call_parts(self, operations: Sequence[Operation], header: CallHeader) -> tuple[list[str], list[bytes]]:
        """KEYS and ARGV of a deciding call."""
        names = self.names
        records = [
            names.request(o.tenant, o.ref) if o.kind in REQUEST_MOVES else names.order(o.tenant, o.ref)
            for o in operations
        ]
        balances = [names.balance(key) for o in operations for key in Operation.keys(o)]
        keys = [names.head, names.log, names.opened, names.due, names.settled, *records, *balances]
        return keys, [pack(header), pack(operations)]

    def decide(self, operation: Operation, **options: Any) -> Result:
        reply = self.call(operation, **options)
        assert reply.status == 0
        return reply.results[0]

    def confirm(self, m: int, digest: str, *, term: int | None = None, payload: bytes = b"named") -> int:
        args = [self.term if term is None else term, m, digest, confirmed_channel(self.number), payload]
        return self.run("confirm", [self.names.head, self.names.log], args)

    def confirm_all(self) -> int:
        """Move the confirmed mark to the log's end; returns m there."""
        m, digest = self.end()
        if m:
            self.confirm(m, digest)
        return m

    def evict(self, applied_m: int, *, before_ms: int = 1 << 50, limit: int = 1000, term: int | None = None) -> int:
        args = [self.term if term is None else term, applied_m, before_ms, limit]
        return self.run("evict", [self.names.head, self.names.settled], args)

    def freeze(self, value: int, *keys: str, term: int | None = None) -> int:
        balances = [self.names.balance(key) for key in keys]
        return self.run("freeze", [self.names.head, *balances], [self.term if term is None else term, value])

    def take_over(self, term: int, m: int, digest: str) -> list[Any]:
        return msgspec.msgpack.decode(self.run("take_over", [self.names.head, self.names.log], [term, m, digest]))

    def check_chain(self, term: int, m: int, digest: str) -> list[Any]:
        return msgspec.msgpack.decode(self.run("check_chain", [self.names.head, self.names.log], [term, m, digest]))

    def read_keys(self, *keys: str, known: tuple[int, str] = (0, "")) -> tuple[int, list[list[Any]]]:
        names = self.names
        balances = [names.balance(key) for key in keys]
        packed = self.run("read_keys", [names.head, names.log, names.opened, *balances], [pack(keys), *known])
        code, rows = msgspec.msgpack.decode(packed)
        return code, rows

    # --- what is there ---

    def head(self, field: str) -> int:
        return int(self.client.hget(self.names.head, field))

    def end(self) -> tuple[int, str]:
        return self.head("m"), self.client.hget(self.names.head, "digest").decode()

    def balance(self, key: str) -> Quantities:
        fields = self.client.hmget(self.names.balance(key), Quantities._fields)
        return Quantities(*(int(field) for field in fields))

    def seq(self, key: str) -> int:
        return int(self.client.hget(self.names.balance(key), "seq"))

    def entries(self) -> list[tuple[int, str, bytes, int]]:
        """The log as (m, digest, payload, bytes appended so far)."""
        found: list[tuple[int, str, bytes, int]] = []
        for entry_id, fields in self.client.xrange(self.names.log):
            m, _, part = entry_id.partition(b"-")
            assert part == b"0"
            found.append((int(m), fields[b"d"].decode(), fields[b"e"], int(fields[b"b"])))
        return found

    def changes(self) -> list[events.Change]:
        return [change for _, _, payload, _ in self.entries() for change in events.decode_changes(payload)]

    def image(self) -> dict[bytes, Any]:
        """Everything that the shard holds in this epoch, to compare before and after."""
        held: dict[bytes, Any] = {}
        for name in self.client.scan_iter(match=self.names.prefix.replace("{", "\\{") + "*", count=1000):
            held[name] = self.client.dump(name)
        return held

    def raise_with(self, name: str, value: str = "x") -> None:
        """Put a plain string where something else should be."""
        self.client.delete(name)
        self.client.set(name, value)


# --- operations, as the gateway makes them ---


def reserve(
    ref: str, *, proof: int = 1 << 40, ttl_ms: int = LONG_MS, buyer: str = "", group: int = 0, **qty: int
) -> Operation:
    return reserve_all(ref, qty, proof=proof, ttl_ms=ttl_ms, buyer=buyer, group=group)


def reserve_all(
    ref: str,
    qty: Mapping[str, int],
    *,
    proof: int = 1 << 40,
    ttl_ms: int = LONG_MS,
    buyer: str = "",
    group: int = 0,
) -> Operation:
    """Keys that are no Python names, or many of them."""
    lines = [Line(key, n) for key, n in qty.items()]
    asked = lines_fingerprint(lines)
    return Operation(Move.RESERVE, group, TENANT, ref, proof, "trace", "web", "", asked, ttl_ms, buyer, -1, lines)


def order_op(
    kind: Move, ref: str, *keys: str, proof: int = 1 << 40, group: int = 0, ttl_ms: int = 0, reason: str = ""
) -> Operation:
    lines = [Line(key, 0) for key in keys]
    return Operation(kind, group, TENANT, ref, proof, "trace", "web", reason, ttl_ms=ttl_ms, lines=lines)


def request_op(
    kind: Move,
    ref: str,
    key: str,
    qty: int,
    *,
    proof: int = 1 << 40,
    base_version: int = -1,
    group: int = 0,
) -> Operation:
    return Operation(
        kind,
        group,
        TENANT,
        ref,
        proof,
        "trace",
        "ops",
        "counted",
        fingerprint(kind.name, key, str(qty)),
        base_version=base_version,
        lines=[Line(key, qty)],
    )


PATH_TO: dict[LineState, list[Move]] = {
    LineState.NONE: [],
    LineState.RESERVED: [Move.RESERVE],
    LineState.CONFIRMED: [Move.RESERVE, Move.CONFIRM],
    LineState.RELEASED: [Move.RESERVE, Move.RELEASE],
    LineState.CONSUMED: [Move.RESERVE, Move.CONFIRM, Move.CONSUME],
    LineState.RETURNED: [Move.RESERVE, Move.CONFIRM, Move.RETURN],
}
"""The moves that bring a line from nothing into each state."""
