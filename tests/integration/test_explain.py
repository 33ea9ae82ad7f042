"""Explanations of keys and orders, one test for each class, on stores that a test has put into that state.

No process of ours runs beside them: MySQL has what the persist worker's own code applied of a built log, Redis what the
scripts would have left of it.
"""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
import pytest
import pytest_asyncio
from pydantic import SecretStr

from inventory.events import genesis
from inventory.explain_key import KeyExplanation, explain_key
from inventory.explain_order import OrderExplanation, explain_order
from inventory.explain_verdict import ExplainedClass
from inventory.held import reject_held, replay_held
from inventory.operator_actions import BadCursor
from kernel import redis_keys
from kernel.limits import EXACT_INTEGER_MAX
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys
from stockgate.explain_command import sections
from stockgate.sections import plain_lines
from stockgate.servers import Servers
from tests.integration.worker_world import WorkerWorld
from tests.log_builder import LogBuilder

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = EpochKeys(0, 1)
C = ExplainedClass
GONE = "redis://127.0.0.1:1/0"
GONE_MYSQL = "mysql://nobody@127.0.0.1:1/none"


class Stores:
    """One shard in both stores. The log grows from test to test; each test has keys and orders of its own."""

    def __init__(self, world: WorkerWorld, redis: RedisDoor) -> None:
        self.world = world
        self.redis = redis
        self.log = LogBuilder()
        self.applied_m = 0
        self.in_redis = 0
        self._keys = iter(range(1_000))

    def key(self, available: int = 10) -> str:
        """A new key, its stock in the log's next entry."""
        name = f"key {next(self._keys)}/a"
        self.log.adjust(name, available)
        return name

    async def place(self, *keys: str) -> None:
        """The balances' empty rows, as the catalogue makes them."""
        for key in keys:
            await self.world.sql("INSERT INTO inventory_balance (inventory_key, shard_no) VALUES (%s, 0)", key)

    async def append(self) -> None:
        """Everything that was done, in Redis' log; its balances and records are there too, loaded or not before."""
        if self.log.pending:
            self.log.entry()
        for m, (digest, payload) in enumerate(self.log.entries[self.in_redis :], self.in_redis + 1):
            await self.redis.command("XADD", NAMES.log, f"{m}-0", "d", digest, "e", payload, "b", 0)
        self.in_redis = self.log.head_m
        await self.head(m=self.log.head_m, confirmed_m=self.log.head_m)

    async def head(self, **fields: int) -> None:
        flat = [part for name, value in fields.items() for part in (name, str(value))]
        await self.redis.command("HSET", NAMES.head, *flat)

    async def apply(self) -> None:
        """Everything in the log, applied by the worker's code."""
        if self.log.head_m > self.applied_m:
            await self.world.apply(self.log.message(self.applied_m + 1, self.log.head_m))
            self.applied_m = self.log.head_m

    async def load(self, key: str, **other: int) -> None:
        """The key in Redis as the log has it, or with other fields."""
        one = self.log.keys[key]
        fields = {
            **dict(zip(("available", "reserved", "sold", "consumed", "locked"), one.quantities, strict=True)),
            "seq": one.seq,
            "version": one.version,
            **other,
        }
        flat = [part for name, value in fields.items() for part in (name, str(value))]
        await self.redis.command("SADD", NAMES.opened, key)
        await self.redis.command("HSET", NAMES.balance(key), *flat)

    async def record(self, order_id: str, *, m: int = 0, **changed: Any) -> None:
        """The order's record in Redis as the log has it."""
        order = self.log.orders[order_id]
        due_ms = changed.get("due_ms", order.due_ms)
        head = [order.fingerprint, due_ms, "buyer-1", order.created_ms, len(order.lines), m]
        fields: list[Any] = ["h", msgspec.msgpack.encode(head)]
        rows = await self.world.query(
            "SELECT inventory_key, seq FROM inventory_reservation WHERE order_id = %s ORDER BY position", order_id
        )
        seqs = dict(rows)
        for position, line in enumerate(order.lines, 1):
            state = changed.get("state", int(line.state))
            packed = [line.inventory_key, line.qty, state, "", 1, seqs.get(line.inventory_key, 0)]
            fields += [f"l:{position}", msgspec.msgpack.encode(packed)]
        await self.redis.command("HSET", NAMES.order(self.log.tenant, order_id), *fields)

    async def settle(self, *keys: str) -> None:
        """All that was done is in both stores."""
        await self.append()
        await self.apply()
        for key in keys:
            await self.load(key)

    async def explain(self, key: str, limit: int = 50, before: int = EXACT_INTEGER_MAX) -> KeyExplanation:
        found = await explain_key(self.world.database, self.redis, 0, key, limit, before)
        assert found is not None
        return found

    async def explain_order(self, order_id: str, limit: int = 50, after: str = "") -> OrderExplanation:
        found = await explain_order(self.world.database, self.redis, 0, self.log.tenant, order_id, limit, after)
        assert found is not None
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stores(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stores]:
    url = SecretStr(servers.redis.url.removesuffix("/0") + "/9")
    async with WorkerWorld.open(servers, tmp_path_factory.mktemp("explain"), redis_url=url) as world:
        redis = RedisDoor.open(world.settings, name="test")
        await redis.command("FLUSHDB")
        opened = Stores(world, redis)
        await world.begin(opened.log)
        await redis.command("SET", redis_keys.register(0), 1)
        start = {"fence": 0, "term": 1, "m": 0, "confirmed_m": 0, "evicted_m": 0, "opened_ms": 0, "grace_ms": 0}
        await opened.head(**start, appended_bytes=0, confirmed_bytes=0)
        await redis.command("HSET", NAMES.head, "digest", genesis(0, 1), "genesis", genesis(0, 1))
        yield opened
        await redis.command("FLUSHDB")
        await redis.close()


def classes(told: KeyExplanation | OrderExplanation) -> list[ExplainedClass]:
    return [finding.found for finding in told.findings]


def told_plainly(told: KeyExplanation | OrderExplanation) -> str:
    """The human rendering; that it can be made at all is part of every test."""
    return "\n".join(plain_lines(sections(told)))


# --- keys -------------------------------------------------------------------------------------------------------------


async def test_equal(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    stores.log.reserve("o-equal", {key: 3})
    stores.log.confirm("o-equal")
    await stores.settle(key)
    told = await stores.explain(key)
    assert (told.ok, told.found, classes(told)) == (True, C.HEALTHY, [C.HEALTHY])
    assert told.redis is not None
    assert told.mysql is not None
    assert told.redis.quantities == told.mysql.quantities
    assert (told.redis.seq, told.mysql.seq, told.redis.state) == (3, 3, "loaded")
    assert "7 available, 0 reserved, 3 sold" in told.sentence
    steps = [(step.seq, step.move, step.actor, step.order_id, step.request_no, step.buyer_id) for step in told.timeline]
    assert steps == [
        (3, "CONFIRM", "orders", "o-equal", "", "buyer-1"),
        (2, "RESERVE", "orders", "o-equal", "", "buyer-1"),
        (1, "ADJUST", "operator", "", f"ADJUST-{key}-1".replace(" ", "_"), ""),
    ]
    assert [step.trace_id for step in told.timeline][:2] == ["trace-o-equal"] * 2
    last = told.timeline[0]
    assert (last.delta.sold, last.after.sold, last.contradiction) == (3, 3, "")
    assert told.next_before is None
    assert "trace-o-equal" in told_plainly(told)


async def test_pages_meet(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    for _ in range(6):
        stores.log.adjust(key, 1)
    await stores.settle(key)
    whole = (await stores.explain(key)).timeline
    paged, before = [], EXACT_INTEGER_MAX
    for _ in range(4):
        page = await stores.explain(key, 2, before)
        assert classes(page) == [C.HEALTHY]
        paged += page.timeline
        before = page.next_before or 0
    assert before == 0
    assert paged == whole


async def test_cold(stores: Stores) -> None:
    key = stores.key(4)
    await stores.place(key)
    await stores.settle()
    told = await stores.explain(key)
    assert (told.ok, told.found) == (True, C.COLD)
    assert told.redis is not None
    assert (told.redis.state, told.redis.quantities) == ("cold", None)
    assert "4 available" in told.sentence


async def test_unknown(stores: Stores) -> None:
    assert await explain_key(stores.world.database, stores.redis, 0, "no such key", 5, EXACT_INTEGER_MAX) is None


@pytest.mark.parametrize(("confirmed", "where"), [(True, "the broker has entry"), (False, "not confirmed")])
async def test_in_flight(stores: Stores, confirmed: bool, where: str) -> None:
    key, other = stores.key(10), stores.key(10)
    order_id = f"o-flight-{confirmed}"
    await stores.place(key, other)
    await stores.settle(key, other)
    stores.log.reserve(order_id, {key: 2, other: 1})
    stores.log.confirm(order_id)
    await stores.append()
    await stores.load(key)
    if not confirmed:
        await stores.head(confirmed_m=stores.applied_m)
    told = await stores.explain(key)
    assert (told.ok, told.found) == (True, C.IN_FLIGHT)
    assert "2 changes ahead" in told.sentence
    assert where in told.sentence
    assert told.in_flight is not None
    assert [(step.move, step.inventory_key, step.qty, step.confirmed) for step in told.in_flight.changes] == [
        ("RESERVE", key, 2, confirmed),
        ("CONFIRM", key, 2, confirmed),
    ]
    assert told.in_flight.complete
    order = await stores.explain_order(order_id)
    assert (order.found, order.status) == (C.LOST, "UNKNOWN"), "in the log and without a record"
    await stores.record(order_id, m=stores.log.head_m)
    order = await stores.explain_order(order_id)
    assert (order.ok, order.found, order.status) == (True, C.IN_FLIGHT, "CONFIRMED")
    assert where in order.sentence
    assert order.in_flight is not None
    assert len(order.in_flight.changes) == 4
    assert order.trace_ids == [f"trace-{order_id}"]
    await stores.settle(key, other)
    assert (await stores.explain(key)).found is C.HEALTHY
    assert classes(await stores.explain_order(order_id))[0] is C.DRIFTED, (
        "the record still says what it said, of another seq"
    )


async def test_the_reading_of_the_log_is_bounded(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    key = stores.key(10)
    await stores.place(key)
    await stores.settle(key)
    for _ in range(5):
        stores.log.adjust(key, 1)
        stores.log.entry()
    stores.log.append_payload(b"no changes at all")
    await stores.append()
    await stores.load(key)
    told = await stores.explain(key)
    assert told.in_flight is not None
    assert (len(told.in_flight.changes), told.in_flight.complete, told.in_flight.undecodable) == (5, True, 1)
    monkeypatch.setattr("inventory.explain_log.ENTRIES_PAGE", 2)
    monkeypatch.setattr("inventory.explain_log.ENTRIES_MAX", 3)
    told = await stores.explain(key)
    assert told.in_flight is not None
    assert (len(told.in_flight.changes), told.in_flight.complete) == (4, False)
    assert "a part of the log only" in told_plainly(told)
    # Take it back, for nobody can apply such an entry: the log is written anew without it.
    del stores.log.entries[-1]
    await stores.redis.command("UNLINK", NAMES.log)
    stores.in_redis = 0
    await stores.settle(key)


async def test_drifted(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    await stores.settle()
    await stores.load(key, available=7)
    told = await stores.explain(key)
    assert (told.ok, told.found) == (False, C.DRIFTED)
    assert "Redis says 7 available" in told.sentence
    assert "MySQL 10 available" in told.sentence
    assert f"stockgate repair correct '{key}' --reason" in told.next_step


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda key: ("DEL", NAMES.balance(key)), "absent or damaged"),
        (lambda key: ("HSET", NAMES.balance(key), "seq", "0"), "behind MySQL's 1"),
        (lambda key: ("HSET", NAMES.balance(key), "sold", "x"), "absent or damaged"),
    ],
)
async def test_lost(stores: Stores, damage: Callable[[str], tuple[str, ...]], why: str) -> None:
    key = stores.key(10)
    await stores.place(key)
    await stores.settle(key)
    await stores.redis.command(*damage(key))
    told = await stores.explain(key)
    assert (told.ok, told.found) == (False, C.LOST)
    assert why in told.sentence
    assert "stockgate repair rebuild_shard 0" in told.next_step


async def test_held_then_mended_then_replayed(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    await stores.settle(key)
    await stores.world.sql("UPDATE inventory_balance SET available = 11, total = 11 WHERE inventory_key = %s", key)
    stores.log.reserve("o-held", {key: 1})
    await stores.append()
    await stores.apply()
    told = await stores.explain(key)
    # Both are true, and the one that forbids to repair comes first.
    assert classes(told) == [C.CONTRADICTION, C.HELD]
    assert "the balance says 11 available" in told.sentence
    await stores.world.sql("UPDATE inventory_balance SET available = 10, total = 10 WHERE inventory_key = %s", key)
    told = await stores.explain(key)
    assert (told.ok, classes(told)) == (False, [C.HELD])
    assert "after-image" in told.sentence
    assert "1 event is parked" in told.sentence
    assert "stockgate repair replay_held" in told.next_step
    assert "stockgate repair reject_held" in told.next_step
    assert [(one.ref, one.seq) for one in told.parked] == [("o-held", 2)]
    order = await stores.explain_order("o-held")
    assert (order.ok, order.found) == (False, C.HELD)
    assert key in order.sentence
    await replay_held(stores.world.database, key, "the row is mended", "ops-1")
    await stores.load(key)
    told = await stores.explain(key)
    assert (told.ok, told.found) == (True, C.HEALTHY)
    assert [(one.kind, one.actor, one.reason) for one in told.repairs] == [
        ("replay_held", "ops-1", "the row is mended")
    ]


async def test_rejected(stores: Stores) -> None:
    key, other = stores.key(10), stores.key(10)
    await stores.place(key, other)
    await stores.settle(key, other)
    stores.log.reserve("o-hurt", {key: 3, other: 1})
    change = stores.log.pending[0]
    wrong = msgspec.structs.replace(change.events[0], locked=1)
    stores.log.append_payload(
        msgspec.msgpack.encode([msgspec.structs.replace(change, events=[wrong, change.events[1]])])
    )
    await stores.append()
    await stores.apply()
    await reject_held(stores.world.database, key, "it cannot be true", "ops-1")
    told = await stores.explain(key)
    assert (told.ok, told.found) == (False, C.REJECTED)
    assert "10 available" in told.sentence
    assert (told.timeline[0].move, told.timeline[0].reason, told.timeline[0].order_id) == (
        "REJECTED",
        "it cannot be true",
        "o-hurt",
    )
    order = await stores.explain_order("o-hurt")
    assert order.found is C.REJECTED
    assert not order.ok
    assert "it cannot be true" in order.sentence
    assert C.CONTRADICTION not in classes(order), "what was rejected explains the missing line"
    await stores.world.sql("UPDATE shard SET rebuild_wanted = 0")


async def test_an_order_of_which_nothing_but_a_rejected_event_is_left(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    await stores.settle(key)
    stores.log.reserve("o-gone", {key: 3})
    change = stores.log.pending[0]
    wrong = msgspec.structs.replace(change.events[0], locked=1)
    stores.log.append_payload(msgspec.msgpack.encode([msgspec.structs.replace(change, events=[wrong])]))
    await stores.append()
    await stores.apply()
    await reject_held(stores.world.database, key, "given up", "ops-1")
    await stores.world.sql("UPDATE inventory_balance SET held = 0 WHERE inventory_key = %s", key)
    await stores.world.sql("UPDATE shard SET rebuild_wanted = 0")
    told = await stores.explain_order("o-gone")
    assert (told.ok, classes(told), told.lines) == (False, [C.REJECTED], [])
    assert "given up" in told.sentence


async def test_a_shard_between_two_epochs_or_without_its_head(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    await stores.settle(key)
    await stores.world.sql("UPDATE shard SET mode = 'opening', rebuild_wanted = 1, rebuild_reason = 'k-1 is lost'")
    told = await stores.explain(key)
    assert (told.ok, told.found, told.mode) == (False, C.CLOSED, "opening")
    assert "k-1 is lost" in told.sentence
    await stores.world.sql("UPDATE shard SET mode = 'hot', rebuild_wanted = 0, epoch = 2")
    told = await stores.explain(key)
    assert (told.found, told.redis, told.log) == (C.CLOSED, None, None)
    assert "Redis has nothing of it" in told.sentence
    await stores.world.sql("UPDATE shard SET epoch = 1")


async def test_a_stopped_worker_is_said_beside_the_class(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    await stores.settle(key)
    await stores.world.sql("UPDATE shard SET alarm = 'FORK', alarm_detail = 'entry 9 has two digests'")
    told = await stores.explain(key)
    assert (told.ok, classes(told)) == (False, [C.HEALTHY, C.STOPPED])
    assert "FORK: entry 9 has two digests" in told.findings[1].sentence
    await stores.world.sql("UPDATE shard SET alarm = '', alarm_detail = ''")


async def test_what_never_took_effect_is_said_beside_the_class(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    await stores.settle(key)
    # An entry of an epoch that is over; another one names a key that only begins alike.
    forked = LogBuilder(epoch=0)
    forked.adjust(key, 10)
    forked.pending = []
    forked.reserve("o-stale", {key: 1})
    payloads = [msgspec.msgpack.encode(forked.pending)]
    forked.pending = []
    forked.adjust(key + "b", 1)
    payloads.append(msgspec.msgpack.encode(forked.pending))
    for m, payload in enumerate(payloads, 7):
        await stores.world.sql(
            "INSERT INTO stale_event (shard_no, epoch, m, term, digest, payload, noted_ms) VALUES (0, 0, %s, 1, %s, %s, 5)",
            m, "d", payload,
        )  # fmt: skip
    told = await stores.explain(key)
    assert (told.ok, classes(told)) == (True, [C.HEALTHY, C.STALE])
    assert [(one.ref, one.m, one.inventory_keys) for one in told.stale] == [("o-stale", 7, [key])]
    order = await stores.explain_order("o-stale")
    assert (order.ok, order.found, order.lines) == (False, C.STALE, [])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("DELETE FROM inventory_ledger WHERE inventory_key = %s AND seq = 2", "seq 3: seq 2 is missing"),
        ("DELETE FROM inventory_ledger WHERE inventory_key = %s AND seq < 3", "seq 3: seq 1 to 2 are missing"),
        ("DELETE FROM inventory_ledger WHERE inventory_key = %s AND seq = 4", "the ledger ends at 3"),
        ("DELETE FROM inventory_ledger WHERE inventory_key = %s", "the ledger ends at 0"),
        ("UPDATE inventory_ledger SET available = 12 WHERE inventory_key = %s AND seq = 2", "seq 3: [12, 0, 0, 0, 0]"),
        ("UPDATE inventory_ledger SET d_locked = 1 WHERE inventory_key = %s AND seq = 4", "seq 4: [12, 0, 0, 0, 0]"),
        (
            "UPDATE inventory_ledger SET inventory_version = 7 WHERE inventory_key = %s AND seq = 4",
            "inventory_version 7",
        ),
        ("UPDATE inventory_balance SET sold = 1, total = 14 WHERE inventory_key = %s", "the balance says 13 available"),
    ],
)
async def test_the_timeline_shows_what_does_not_follow(stores: Stores, harm: str, said: str) -> None:
    key = stores.key(10)
    await stores.place(key)
    for _ in range(3):
        stores.log.adjust(key, 1)
    await stores.settle(key)
    await stores.world.sql(harm, key)
    told = await stores.explain(key)
    assert (told.ok, told.found) == (False, C.CONTRADICTION)
    assert said in told.sentence
    assert "stockgate audit" in told.next_step
    assert "contradict" in told_plainly(told)


async def test_without_redis_or_mysql_the_other_one_is_shown(
    stores: Stores, capsys: pytest.CaptureFixture[str]
) -> None:
    key = stores.key(10)
    await stores.place(key)
    stores.log.reserve("o-away", {key: 4})
    await stores.settle(key)
    await stores.record("o-away", m=stores.log.head_m)
    settings = stores.world.settings
    no_redis = RedisDoor.open(settings.model_copy(update={"redis_url": SecretStr(GONE)}), name="test")
    no_mysql = await Database.open(settings.model_copy(update={"mysql_url": SecretStr(GONE_MYSQL)}), name="test")

    told = await explain_key(stores.world.database, no_redis, 0, key, 5, EXACT_INTEGER_MAX)
    assert told is not None
    assert (told.ok, told.found, told.missing, told.redis) == (False, C.UNDETERMINED, ["redis"], None)
    assert "MySQL says 6 available" in told.sentence
    assert len(told.timeline) == 2
    order = await explain_order(stores.world.database, no_redis, 0, "t1", "o-away", 5, "")
    assert order is not None
    assert (order.found, order.status, len(order.timeline)) == (C.UNDETERMINED, "RESERVED", 1)

    told = await explain_key(no_mysql, stores.redis, 0, key, 5, EXACT_INTEGER_MAX)
    assert told is not None
    assert (told.ok, told.found, told.missing, told.mysql) == (False, C.UNDETERMINED, ["mysql"], None)
    assert "Redis, which decides, says 6 available" in told.sentence
    assert told.in_flight is not None
    assert [step.move for step in told.in_flight.changes][-1] == "RESERVE"
    assert not told.in_flight.complete
    order = await explain_order(no_mysql, stores.redis, 0, "t1", "o-away", 5, "")
    assert order is not None
    assert (order.found, order.status) == (C.UNDETERMINED, "RESERVED")

    told = await explain_key(no_mysql, no_redis, 0, "whatever", 5, EXACT_INTEGER_MAX)
    assert told is not None
    assert told.missing == ["mysql", "redis"]
    assert "Redis and MySQL" in told.sentence or "MySQL and Redis" in told.sentence
    assert "does not answer" not in told_plainly(told).splitlines()[0]
    await no_redis.close()
    await no_mysql.close()
    assert capsys.readouterr().out == ""


# --- orders -----------------------------------------------------------------------------------------------------------


async def test_an_order_over_all_its_lines(stores: Stores) -> None:
    key, other = stores.key(10), stores.key(10)
    await stores.place(key, other)
    stores.log.reserve("o-lines", {key: 2, other: 3}, ttl_ms=10**12)
    stores.log.confirm("o-lines", [0])
    await stores.settle(key, other)
    await stores.record("o-lines", m=stores.log.head_m)
    told = await stores.explain_order("o-lines")
    assert (told.ok, told.found, told.status, told.buyer_id) == (True, C.HEALTHY, "MIXED", "buyer-1")
    assert [(line.inventory_key, line.redis == line.mysql) for line in told.lines] == [(key, True), (other, True)]
    assert [(step.move, step.inventory_key) for step in told.timeline] == [
        ("RESERVE", key),
        ("RESERVE", other),
        ("CONFIRM", key),
    ]
    assert (told.trace_ids, told.actors) == (["trace-o-lines"], ["orders"])
    assert told.due_at is not None
    # Two rows of one entry lie on both sides of a page's end.
    paged, after = [], ""
    for _ in range(3):
        page = await stores.explain_order("o-lines", 1, after)
        paged += page.timeline
        after = page.next_after or ""
    assert (paged, after) == (told.timeline, "")
    assert key in told_plainly(told)
    assert await explain_order(stores.world.database, stores.redis, 0, "another tenant", "o-lines", 5, "") is None


async def test_an_order_that_has_left_redis(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    stores.log.reserve("o-cold", {key: 2})
    stores.log.release("o-cold")
    await stores.settle(key)
    told = await stores.explain_order("o-cold")
    assert (told.ok, told.found, told.status, told.due_at) == (True, C.COLD, "RELEASED", None)


async def test_an_order_that_redis_has_otherwise(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    stores.log.reserve("o-other", {key: 2})
    await stores.settle(key)
    await stores.record("o-other", m=stores.log.head_m, state=2)
    told = await stores.explain_order("o-other")
    assert (told.ok, told.found) == (False, C.DRIFTED)
    assert key in told.sentence
    assert "rebuild_shard 0" in told.next_step


async def test_an_order_whose_record_is_damaged(stores: Stores) -> None:
    key = stores.key(10)
    await stores.place(key)
    stores.log.reserve("o-damaged", {key: 2})
    await stores.settle(key)
    name = NAMES.order("t1", "o-damaged")
    for damage in (("HSET", name, "h", "x"), ("SET", name, "x")):
        await stores.redis.command("UNLINK", name)
        await stores.redis.command(*damage)
        told = await stores.explain_order("o-damaged")
        assert (told.ok, told.found) == (False, C.LOST)
        assert told.status == "RESERVED", "what MySQL says is shown"


@pytest.mark.parametrize(("age_s", "ok"), [(5, True), (3_600, False)])
async def test_a_hold_that_is_due_and_still_there(stores: Stores, age_s: int, ok: bool) -> None:
    key, order_id = stores.key(10), f"o-due-{age_s}"
    await stores.place(key)
    stores.log.reserve(order_id, {key: 2})
    await stores.settle(key)
    seconds, _ = await stores.redis.command("TIME")
    await stores.record(order_id, m=stores.log.head_m, due_ms=(int(seconds) - age_s) * 1000)
    told = await stores.explain_order(order_id)
    assert (told.ok, classes(told)) == (ok, [C.HEALTHY, C.OVERDUE])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("UPDATE inventory_order SET line_count = 2 WHERE order_id = %s", "counts 2 lines, and there are 1"),
        ("UPDATE inventory_order SET open_lines = 0 WHERE order_id = %s", "counts 0 open lines, and there are 1"),
        ("DELETE FROM inventory_order WHERE order_id = %s", "lines and no header"),
        (
            "UPDATE inventory_reservation SET state = 4 WHERE order_id = %s",
            "is CONSUMED, the ledger leaves it RESERVED",
        ),
        ("UPDATE inventory_ledger SET kind = 2 WHERE ref = %s", "EXTEND of a line in state NONE"),
        (
            "UPDATE inventory_ledger SET line_state = 3 WHERE ref = %s",
            "RESERVE leads to RESERVED, the row says RELEASED",
        ),
    ],
)
async def test_an_order_whose_rows_do_not_agree(stores: Stores, harm: str, said: str) -> None:
    key = stores.key(10)
    order_id = key.replace(" ", "-")
    await stores.place(key)
    stores.log.reserve(order_id, {key: 2})
    await stores.settle(key)
    await stores.world.sql(harm, order_id)
    told = await stores.explain_order(order_id)
    assert (told.ok, told.found) == (False, C.CONTRADICTION)
    assert said in told.sentence


@pytest.mark.parametrize("cursor", ["1", "1.2.3.4", "a.2.3.4.k", "1.2.3.4.k\u00e9", "1.2.3.99999999999999999.k"])
async def test_a_cursor_that_no_page_gave_is_refused(stores: Stores, cursor: str) -> None:
    with pytest.raises(BadCursor):
        await explain_order(stores.world.database, stores.redis, 0, "t1", "o", 5, cursor)
