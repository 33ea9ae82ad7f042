"""One suite for both who decide: Redis by its scripts with MySQL behind it, and MySQL alone. The answers are the same."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

import lua
from inventory.moves import EXPIRED, LineState, Move, Quantities
from inventory.operations import Line, Operation, Result
from inventory.outcomes import Outcome
from kernel import limits
from stockgate.servers import Servers
from tests.held import held
from tests.integration.db_world import DbWorld
from tests.integration.hot_world import TERM, Gateway, World
from tests.lua.shard import LONG_MS, TENANT, order_op, request_op, reserve, reserve_all

GRACE_MS = 600_000


class Hot:
    """Decided by Redis: a gateway's hot path with its loader."""

    def __init__(self, world: World, gateway: Gateway) -> None:
        self._world = world
        self._gateway = gateway

    @classmethod
    @asynccontextmanager
    async def open(cls, servers: Servers) -> AsyncGenerator["Hot"]:
        async with World.open(servers) as world, world.gateway() as gateway:
            yield cls(world, gateway)

    async def call(self, *ops: Operation) -> Sequence[Any]:
        return (await self._gateway.path.decide(ops)).decisions

    async def stock(self, **available: int) -> None:
        for key, units in available.items():
            await self._world.stock(key, available=units)

    async def hold(self, key: str) -> None:
        await self._world.sql("UPDATE inventory_balance SET held = 1 WHERE inventory_key = %s", (key,))
        names = self._world.names
        await self._world.redis.run(lua.load("freeze"), [names.head, names.balance(key)], [TERM, 1])

    async def park(self, ref: str, key: str, m: int) -> None:
        await self._world.sql(PARK, (key, m, TENANT, ref))

    async def begin_with_grace(self) -> None:
        await self._world.open_epoch(grace_ms=GRACE_MS)
        await self._gateway.watch.refresh()

    async def balance(self, key: str) -> Quantities:
        found = await self._world.balance(key)
        return Quantities(*(found[name] for name in Quantities._fields))


class Db:
    """Decided by MySQL."""

    def __init__(self, world: DbWorld) -> None:
        self._world = world
        self.violations: dict[str, Any] = {}
        """What the audit may find in the end."""

    @classmethod
    @asynccontextmanager
    async def open(cls, servers: Servers) -> AsyncGenerator["Db"]:
        async with DbWorld.open(servers, hold_grace_ms=GRACE_MS) as world:
            db = cls(world)
            yield db
            assert await world.violations() == db.violations

    async def call(self, *ops: Operation) -> Sequence[Any]:
        return await self._world.call(*ops)

    async def stock(self, **available: int) -> None:
        await self._world.stock(**available)

    async def hold(self, key: str) -> None:
        await self._world.sql("UPDATE inventory_balance SET held = 1 WHERE inventory_key = %s", (key,))

    async def park(self, ref: str, key: str, m: int) -> None:
        await self._world.sql(PARK, (key, m, TENANT, ref))

    async def begin_with_grace(self) -> None:
        await self._world.sql("UPDATE shard SET since_ms = UNIX_TIMESTAMP(NOW(3)) * 1000")

    async def balance(self, key: str) -> Quantities:
        return await self._world.balance(key)


PARK = "INSERT INTO inventory_parked_event VALUES (%s, 1, %s, 0, 0, 1, %s, %s, '', 'for a test', 1)"


class Path:
    """Either of them, with what the tests need often."""

    def __init__(self, who: Hot | Db) -> None:
        self.who = who
        self.stock, self.call, self.hold, self.balance = who.stock, who.call, who.hold, who.balance

    async def decide(self, op: Operation) -> Result:
        [result] = await self.call(op)
        assert isinstance(result, Result), result
        return result

    async def outcomes(self, *ops: Operation) -> list[Any]:
        """Outcomes of operations one after the other, `REPLAY` where nothing was done."""
        results = [await self.decide(op) for op in ops]
        return ["REPLAY" if r.replay else r.outcome.name for r in results]

    async def lines(self, ref: str) -> list[tuple[LineState, str]]:
        view = (await self.decide(order_op(Move.READ, ref))).order_view()
        return [(LineState(line.state), line.reason) for line in view.lines]


@pytest.fixture(params=["hot", "db"])
async def path(request: pytest.FixtureRequest, servers: Servers) -> AsyncGenerator[Path]:
    which: Literal["hot", "db"] = request.param
    async with held(Hot.open(servers) if which == "hot" else Db.open(servers)) as who:
        yield Path(who)


# --- reserve ---


async def test_a_reserve_takes_all_lines_and_says_where_they_stand(path: Path) -> None:
    await path.stock(a=5, b=7)
    result = await path.decide(reserve("o1", a=2, b=3, buyer="anna"))
    view = result.order_view()
    assert (result.outcome, result.replay, view.buyer_id) == (Outcome.DONE, 0, "anna")
    assert [(x.inventory_key, x.qty, x.state, x.reason) for x in view.lines] == [("a", 2, 1, ""), ("b", 3, 1, "")]
    assert await path.balance("b") == Quantities(4, 3, 0, 0, 0)


async def test_short_stock_takes_nothing_and_lists_only_what_is_short(path: Path) -> None:
    await path.stock(a=5, b=1, c=0)
    result = await path.decide(reserve("o1", a=5, b=2, c=1))
    assert (result.outcome, result.detail) == (Outcome.INSUFFICIENT_STOCK, [["b", 2, 1], ["c", 1, 0]])
    assert await path.outcomes(order_op(Move.READ, "o1"), reserve("o1", a=5)) == ["UNKNOWN_ORDER", "DONE"]


async def test_one_key_in_two_lines_is_counted_as_their_sum(path: Path) -> None:
    await path.stock(a=5)
    op = reserve("o1", a=3)
    op.lines = [Line("a", 3), Line("a", 3)]
    assert (await path.decide(op)).detail == [["a", 6, 5]]
    op.lines = [Line("a", 3), Line("a", 2)]
    assert await path.outcomes(op, order_op(Move.CONFIRM, "o1", "a")) == ["DONE", "DONE"]
    assert await path.balance("a") == Quantities(0, 0, 5, 0, 0)
    if isinstance(path.who, Db):
        # No caller may name a key twice, so the audit takes one line's path for each key.
        row = {"tenant": TENANT, "order_id": "o1", "inventory_key": "a", "reserved": 2, "confirmed": 2}
        none = {"released": 0, "consumed": 0, "returned": 0}
        path.who.violations = {"lines_take_legal_paths": [row | none]}


async def test_the_last_unit_goes_to_the_first_of_one_call(path: Path) -> None:
    await path.stock(a=1)
    results = await path.call(*(reserve(f"o{i}", a=1, group=i) for i in range(4)))
    assert [r.outcome for r in results] == [Outcome.DONE] + 3 * [Outcome.INSUFFICIENT_STOCK]


async def test_a_repeat_is_a_replay_and_another_content_a_conflict(path: Path) -> None:
    await path.stock(a=5, b=5)
    first = await path.decide(reserve("o1", a=2, buyer="anna"))
    for repeat in (reserve("o1", a=2, buyer="anna"), reserve("o1", a=2), reserve("o1", a=2, buyer="anna", ttl_ms=1)):
        again = await path.decide(repeat)
        assert (again.outcome, again.replay, again.detail) == (Outcome.DONE, 1, first.detail)
    for other in (reserve("o1", a=3, buyer="anna"), reserve("o1", a=2, b=1), reserve("o1", a=2, buyer="bert")):
        result = await path.decide(other)
        assert (result.outcome, result.order_view().lines[0].qty) == (Outcome.ORDER_CONFLICT, 2)
    assert await path.balance("a") == Quantities(3, 2, 0, 0, 0)


async def test_a_thousand_lines_are_one_order(path: Path) -> None:
    qty = {f"key {i}": 1 + i % 3 for i in range(limits.LINES_PER_ORDER_MAX)}
    await path.stock(**dict.fromkeys(qty, 3))
    result = await path.decide(reserve_all("big", qty))
    assert [(line.inventory_key, line.qty) for line in result.order_view().lines] == list(qty.items())
    assert await path.outcomes(order_op(Move.CONFIRM, "big", "key 7"), order_op(Move.CONFIRM, "big")) == [
        "DONE",
        "DONE",
    ]
    assert set(await path.lines("big")) == {(LineState.CONFIRMED, "")}
    assert await path.balance("key 8") == Quantities(0, 0, 3, 0, 0)


async def test_one_request_from_hold_to_return_in_one_call_shows_the_order_at_each_turn(path: Path) -> None:
    await path.stock(a=5, b=5)
    results = await path.call(
        reserve("o1", a=1, b=1),
        order_op(Move.READ, "o1"),
        order_op(Move.CONFIRM, "o1", "a"),
        order_op(Move.RELEASE, "o1", reason="risk"),
        order_op(Move.RETURN, "o1", "a"),
        reserve("o1", a=1, b=1),
    )
    assert [r.outcome for r in results] == 5 * [Outcome.DONE] + [Outcome.ORDER_CLOSED]
    assert [[line.state for line in r.order_view().lines] for r in results] == [
        [1, 1], [1, 1], [2, 1], [2, 3], [5, 3], [5, 3],
    ]  # fmt: skip
    assert [line.seq for line in results[0].order_view().lines] == [
        line.seq - 2 if line.inventory_key == "a" else line.seq - 1 for line in results[5].order_view().lines
    ]


# --- some lines, lines in the way ---


async def test_a_move_of_some_lines_leaves_the_others(path: Path) -> None:
    await path.stock(a=5, b=5, c=5)
    assert await path.outcomes(
        reserve("o1", a=1, b=2, c=3),
        order_op(Move.CONFIRM, "o1", "b"),
        order_op(Move.CONFIRM, "o1", "b"),
        order_op(Move.CONFIRM, "o1", "a", "b"),
        order_op(Move.RELEASE, "o1", reason="cancelled"),
        order_op(Move.RELEASE, "o1", reason="risk"),
    ) == ["DONE", "DONE", "REPLAY", "DONE", "DONE", "REPLAY"]
    assert await path.lines("o1") == [
        (LineState.CONFIRMED, ""),
        (LineState.CONFIRMED, ""),
        (LineState.RELEASED, "cancelled"),
    ]


async def test_unknown_lines_and_lines_in_the_way_stop_the_whole_move(path: Path) -> None:
    await path.stock(a=5, b=5)
    assert await path.outcomes(reserve("o1", a=1, b=1), order_op(Move.RELEASE, "o1", "a", reason="risk")) == 2 * [
        "DONE"
    ]
    for op, outcome, detail in (
        (order_op(Move.CONFIRM, "o1", "b", "x", "zz"), Outcome.UNKNOWN_LINE, ["x", "zz"]),
        (order_op(Move.CONFIRM, "o1"), Outcome.ILLEGAL_TRANSITION, [["a", LineState.RELEASED, "risk"]]),
        (order_op(Move.CONSUME, "o1", "b"), Outcome.ILLEGAL_TRANSITION, [["b", LineState.RESERVED, ""]]),
    ):
        result = await path.decide(op)
        assert (result.outcome, result.detail) == (outcome, detail)
    assert await path.outcomes(order_op(Move.CONFIRM, "o1", "b"), order_op(Move.RELEASE, "o1")) == ["DONE", "REPLAY"]
    assert (await path.decide(order_op(Move.EXTEND, "o1", ttl_ms=1))).detail == [["a", 3, "risk"], ["b", 2, ""]]


async def test_an_order_of_another_tenant_is_unknown_and_a_request_may_share_a_number(path: Path) -> None:
    await path.stock(a=5)
    foreign = order_op(Move.CONFIRM, "o1")
    foreign.tenant = "other"
    assert await path.outcomes(reserve("o1", a=1), foreign, request_op(Move.ADJUST, "o1", "a", 1)) == [
        "DONE",
        "UNKNOWN_ORDER",
        "DONE",
    ]


# --- time ---


async def test_expiry_releases_what_is_held_and_leaves_what_is_sold(path: Path) -> None:
    await path.stock(a=5, b=5)
    results = await path.call(
        reserve("o1", a=1, b=2, ttl_ms=1_500), order_op(Move.CONFIRM, "o1", "a"), order_op(Move.EXPIRE, "o1")
    )
    assert [(r.outcome, r.replay) for r in results] == [(Outcome.DONE, 0), (Outcome.DONE, 0), (Outcome.DONE, 1)]
    # A hold that ends within a call is due at once for what comes behind.
    results = await path.call(reserve("o2", b=1, ttl_ms=0), order_op(Move.READ, "o2"), order_op(Move.EXPIRE, "o2"))
    assert [(r.outcome, r.replay) for r in results] == [(Outcome.DONE, 0), (Outcome.DONE, 0), (Outcome.DONE, 1)]
    assert await path.lines("o2") == [(LineState.RELEASED, EXPIRED)]
    for kind in (Move.CONFIRM, Move.EXTEND):
        assert (await path.decide(order_op(kind, "o2", ttl_ms=LONG_MS))).outcome is Outcome.HOLD_EXPIRED
    assert await path.outcomes(order_op(Move.RELEASE, "o2"), reserve("o2", b=1)) == ["REPLAY", "ORDER_CLOSED"]
    assert await path.balance("b") == Quantities(3, 2, 0, 0, 0)


async def test_grace_after_the_beginning_keeps_what_would_be_due(path: Path) -> None:
    await path.who.begin_with_grace()
    await path.stock(a=5)
    first = await path.decide(reserve("o1", a=1, ttl_ms=0))
    assert await path.outcomes(
        order_op(Move.EXPIRE, "o1"),
        order_op(Move.EXTEND, "o1", ttl_ms=1000),
        order_op(Move.EXTEND, "o1", ttl_ms=2 * GRACE_MS),
        order_op(Move.CONFIRM, "o1"),
    ) == ["REPLAY", "REPLAY", "DONE", "DONE"]
    later = await path.decide(order_op(Move.READ, "o1"))
    assert later.order_view().due_ms - first.order_view().due_ms > GRACE_MS - 60_000


async def test_extend_moves_the_due_time_forward_only(path: Path) -> None:
    await path.stock(a=5)
    due_ms = (await path.decide(reserve("o1", a=1))).order_view().due_ms
    assert await path.outcomes(order_op(Move.EXTEND, "o1", ttl_ms=1)) == ["REPLAY"]
    moved = await path.decide(order_op(Move.EXTEND, "o1", ttl_ms=2 * LONG_MS))
    assert (moved.outcome, moved.replay) == (Outcome.DONE, 0)
    assert moved.order_view().due_ms >= due_ms + LONG_MS
    await path.hold("a")
    refused, shown = await path.call(order_op(Move.EXTEND, "o1", ttl_ms=3 * LONG_MS), order_op(Move.READ, "o1"))
    assert (refused.outcome, shown.order_view().due_ms) == (Outcome.KEY_FROZEN, moved.order_view().due_ms)


# --- unknown, held, parked ---


async def test_unknown_and_held_keys_are_named_and_nothing_is_taken(path: Path) -> None:
    await path.stock(a=5, b=5)
    await path.hold("b")
    results = await path.call(
        reserve("o1", a=1, u1=1, u2=1),
        reserve("o2", a=1, b=1, group=1),
        request_op(Move.LOCK, "r1", "u1", 1, group=2),
        request_op(Move.LOCK, "r2", "b", 1, group=3),
        reserve("o3", a=1, group=4),
    )
    assert [(r.outcome, r.detail) for r in results[:4]] == [
        (Outcome.UNKNOWN_INVENTORY_KEY, ["u1", "u2"]),
        (Outcome.KEY_FROZEN, ["b"]),
        (Outcome.UNKNOWN_INVENTORY_KEY, ["u1"]),
        (Outcome.KEY_FROZEN, ["b"]),
    ]
    assert results[4].outcome is Outcome.DONE
    assert await path.balance("a") == Quantities(4, 1, 0, 0, 0)


async def test_a_held_key_stands_still_whoever_asks(path: Path) -> None:
    await path.stock(a=5, b=5)
    assert await path.outcomes(reserve("o1", a=1, b=1), reserve("due", a=1, ttl_ms=0)) == ["DONE", "DONE"]
    await path.hold("a")
    for op in (
        reserve("o2", b=1, a=1),
        order_op(Move.CONFIRM, "o1"),
        order_op(Move.RELEASE, "o1", "a"),
        order_op(Move.EXTEND, "o1", ttl_ms=2 * LONG_MS),
        order_op(Move.EXPIRE, "due"),
        order_op(Move.CONFIRM, "due"),
        request_op(Move.ADJUST, "r1", "a", 1),
    ):
        result = await path.decide(op)
        assert (result.outcome, result.detail) == (Outcome.KEY_FROZEN, ["a"])
    assert await path.lines("due") == [(LineState.RESERVED, "")], "reading tells what is there"
    assert await path.outcomes(reserve("o1", a=1, b=1), order_op(Move.CONFIRM, "o1", "b")) == ["REPLAY", "DONE"]


async def test_what_has_parked_changes_is_held_with_their_keys(path: Path) -> None:
    await path.stock(a=5, x=5)
    for m, ref in enumerate(("o1", "r1")):
        await path.who.park(ref, "x", m)
    for op in (
        reserve("o1", a=1),
        order_op(Move.READ, "o1"),
        order_op(Move.CONFIRM, "o1"),
        request_op(Move.LOCK, "r1", "a", 1),
    ):
        result = await path.decide(op)
        assert (result.outcome, result.detail) == (Outcome.KEY_FROZEN, ["x"])
    assert await path.outcomes(reserve("o2", a=1)) == ["DONE"]


# --- operators' changes ---


async def test_a_repeated_request_is_answered_with_the_balance_as_it_was_then(path: Path) -> None:
    await path.stock(a=5)
    first = await path.decide(request_op(Move.ADJUST, "r1", "a", 10))
    assert await path.outcomes(reserve("o1", a=3)) == ["DONE"]
    again = await path.decide(request_op(Move.ADJUST, "r1", "a", 10))
    assert (again.outcome, again.replay, again.detail) == (Outcome.DONE, 1, first.detail)
    assert first.detail[:6] == ["a", 15, 0, 0, 0, 0]
    same_fingerprint = request_op(Move.UNLOCK, "r1", "a", 10)
    same_fingerprint.fingerprint = request_op(Move.ADJUST, "r1", "a", 10).fingerprint
    for other in (request_op(Move.ADJUST, "r1", "a", 11), request_op(Move.LOCK, "r1", "a", 10), same_fingerprint):
        assert (await path.decide(other)).outcome is Outcome.REQUEST_CONFLICT


async def test_the_version_guards_edits_and_sales_do_not_move_it(path: Path) -> None:
    await path.stock(a=5)
    assert await path.outcomes(request_op(Move.ADJUST, "r1", "a", 1, base_version=0), reserve("o1", a=1)) == 2 * [
        "DONE"
    ]
    stale = await path.decide(request_op(Move.ADJUST, "r2", "a", 1, base_version=0))
    assert (stale.outcome, stale.detail) == (Outcome.VERSION_CONFLICT, [1])
    assert (await path.decide(request_op(Move.ADJUST, "r2", "a", 1, base_version=1))).balance_view().version == 2


async def test_no_request_goes_below_zero_or_beyond_the_exact_range(path: Path) -> None:
    top = limits.QUANTITY_TOTAL_MAX
    await path.stock(a=5, b=top - 10)
    for op, outcome, detail in (
        (request_op(Move.ADJUST, "r1", "a", -6), Outcome.INSUFFICIENT_STOCK, [["a", 6, 5]]),
        (request_op(Move.LOCK, "r1", "a", 6), Outcome.INSUFFICIENT_STOCK, [["a", 6, 5]]),
        (request_op(Move.UNLOCK, "r1", "a", 1), Outcome.INSUFFICIENT_STOCK, [["a", 1, 0]]),
        (request_op(Move.LOCK, "r1", "a", 0), Outcome.QUANTITY_LIMIT, ["a"]),
        (request_op(Move.UNLOCK, "r1", "a", -1), Outcome.QUANTITY_LIMIT, ["a"]),
        (request_op(Move.ADJUST, "r1", "b", 11), Outcome.QUANTITY_LIMIT, ["b"]),
        (request_op(Move.ADJUST, "r1", "b", 2**60), Outcome.QUANTITY_LIMIT, ["b"]),
    ):
        result = await path.decide(op)
        assert (result.outcome, result.detail) == (outcome, detail)
    assert await path.outcomes(
        request_op(Move.ADJUST, "r1", "a", -5),
        request_op(Move.ADJUST, "r2", "b", 10),
        request_op(Move.LOCK, "r3", "b", top),
        request_op(Move.UNLOCK, "r4", "b", 1),
    ) == 4 * ["DONE"]
    assert await path.balance("b") == Quantities(1, 0, 0, 0, top - 1)


@pytest.mark.parametrize("qty", [0, -1, limits.QTY_MAX + 1, 2**53])
async def test_a_quantity_out_of_range_takes_nothing(path: Path, qty: int) -> None:
    await path.stock(a=5)
    result = await path.decide(reserve("o1", a=qty))
    assert (result.outcome, result.detail) == (Outcome.QUANTITY_LIMIT, ["a"])
