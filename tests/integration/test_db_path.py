"""MySQL decides: real transactions of several gateways at once, switches, collisions, and answers that are lost."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from inventory.db_expiry import DbSweeper
from inventory.db_path import DbPath
from inventory.hot_path import Called, Failure
from inventory.moves import EXPIRED, LineState, Move, Quantities
from inventory.operations import Operation, Result
from inventory.outcomes import CallStatus
from kernel import limits
from kernel.errors import Retryable
from kernel.mysql_door import Database, Statement
from stockgate.servers import Servers
from tests.held import held
from tests.integration.db_world import EPOCH, TERM, DbWorld
from tests.lua.shard import LONG_MS, TENANT, order_op, request_op, reserve, reserve_all
from tests.proxy import proxy_to

SEED = 20261201


@pytest.fixture
async def world(servers: Servers) -> AsyncGenerator[DbWorld]:
    async with held(DbWorld.open(servers)) as world:
        yield world


def outcomes(called: Called) -> list[str]:
    return [
        f"{d.code} {d.outcome}" if isinstance(d, Failure) else "REPLAY" if d.replay else d.outcome.name
        for d in called.decisions
    ]


# --- one call ---


async def test_what_is_written_is_what_the_worker_would_write(world: DbWorld) -> None:
    await world.stock(a=5)
    called = await world.path.call([reserve("o1", a=2, buyer="anna"), request_op(Move.LOCK, "r1", "a", 1)])
    assert (called.status, called.epoch, called.m, called.digest, called.confirmed_m) == (0, EPOCH, 0, "", 0)
    [result, _] = called.decisions
    assert isinstance(result, Result)
    assert (result.wait, result.order_view().due_ms) == (0, called.now_ms + LONG_MS)
    assert [(x.epoch, x.seq) for x in result.order_view().lines] == [(EPOCH, 2)]
    [header] = await world.rows("SELECT * FROM inventory_order")
    asked = reserve("o1", a=2)
    now = called.now_ms
    assert header == (TENANT, "o1", 0, asked.fingerprint, "anna", 1, 1, now + LONG_MS, EPOCH, 0, now, now)
    assert await world.rows("SELECT * FROM inventory_reservation") == [(TENANT, "o1", 1, "a", 2, 1, "", EPOCH, 2, now)]
    ledger = await world.rows("SELECT * FROM inventory_ledger WHERE seq > 1 ORDER BY seq")
    assert [row[:10] for row in ledger] == [
        ("a", 2, 0, EPOCH, 0, Move.RESERVE, TENANT, "o1", 1, 2),
        ("a", 3, 0, EPOCH, 0, Move.LOCK, TENANT, "r1", 0, 1),
    ]
    assert ledger[0][20:] == (0, now + LONG_MS, now, "trace", "web", "")
    assert await world.rows(
        "SELECT tenant, request_no, inventory_key, kind, fingerprint, epoch, seq FROM inventory_request"
    ) == [(TENANT, "r1", "a", Move.LOCK, request_op(Move.LOCK, "r1", "a", 1).fingerprint, EPOCH, 3)]
    assert await world.violations() == {}


async def test_refusals_reads_and_replays_write_nothing(world: DbWorld) -> None:
    await world.stock(a=5)
    await world.call(reserve("o1", a=1), request_op(Move.LOCK, "r1", "a", 1))
    image = await world.image()
    called = await world.path.call(
        [
            reserve("o1", a=1),
            reserve("o2", a=9),
            reserve("o1", a=2),
            order_op(Move.READ, "o1"),
            order_op(Move.EXPIRE, "o1"),
            order_op(Move.CONFIRM, "o2"),
            request_op(Move.LOCK, "r1", "a", 1),
            request_op(Move.LOCK, "r2", "a", 9),
        ]
    )
    assert outcomes(called) == [
        "REPLAY",
        "INSUFFICIENT_STOCK",
        "ORDER_CONFLICT",
        "DONE",
        "REPLAY",
        "UNKNOWN_ORDER",
        "REPLAY",
        "INSUFFICIENT_STOCK",
    ]
    assert await world.image() == image


async def test_orders_in_part_are_lost_and_harm_no_other(world: DbWorld) -> None:
    await world.stock(a=5, b=5)
    await world.call(reserve("bad", a=1, b=1), request_op(Move.LOCK, "r1", "a", 1))
    await world.sql("DELETE FROM inventory_reservation WHERE position = 1")
    await world.sql("DELETE FROM inventory_ledger WHERE ref = 'r1'")
    called = await world.path.call(
        [
            order_op(Move.READ, "bad"),
            reserve("bad", a=1, b=1),
            request_op(Move.LOCK, "r1", "a", 1),
            reserve("good", b=1),
        ]
    )
    assert outcomes(called) == ["LOST", "LOST", "LOST", "DONE"]


async def test_a_full_call_is_one_transaction_and_more_lines_than_it_walks_are_left_to_the_next(world: DbWorld) -> None:
    qty = {f"k{i}": 1 for i in range(limits.LINES_PER_ORDER_MAX)}
    await world.stock(**dict.fromkeys(qty, 1_000))
    # More names than one list takes, of orders, lines and keys.
    singles = [reserve_all(f"s{i}", {f"k{i}": 1, f"k{i + 488}": 1}) for i in range(limits.BATCH_OPERATIONS_MAX - 12)]
    assert outcomes(await world.path.call(singles)) == ["DONE"] * len(singles)
    for i in range(5):
        assert outcomes(await world.path.call([reserve_all(f"o{i}", qty)])) == ["DONE"]
    confirms = [order_op(Move.CONFIRM, f"o{i}", group=i) for i in range(5)]
    assert outcomes(await world.path.call(confirms)) == 4 * ["DONE"] + ["SKIPPED"]
    assert outcomes(await world.path.call(confirms)) == 4 * ["REPLAY"] + ["SKIPPED"]
    assert outcomes(await world.path.call([order_op(op.kind, op.ref) for op in reversed(confirms)])) == [
        "DONE", "REPLAY", "REPLAY", "REPLAY", "SKIPPED",
    ]  # fmt: skip
    assert await world.violations() == {}


# --- who decides ---


@pytest.mark.parametrize("mode", ["hot", "opening"])
async def test_nothing_is_decided_in_another_mode_or_for_a_past_leader(world: DbWorld, mode: str) -> None:
    await world.stock(a=5)
    stale = await world.path.call([reserve("o1", a=1)], term=TERM - 1)
    assert (stale.status, outcomes(stale)) == (CallStatus.STALE_TERM, ["SHARD_CLOSED not_executed"])
    assert outcomes(await world.path.call([reserve("o1", a=1)], term=TERM)) == ["DONE"]
    image = await world.image()
    await world.set_mode(mode)
    closed = await world.path.call([order_op(Move.READ, "o1"), reserve("o2", a=1)])
    assert (closed.status, outcomes(closed)) == (CallStatus.FENCED, 2 * ["SHARD_CLOSED not_executed"])
    assert await world.image() == image


async def test_whoever_ends_db_mode_waits_for_decisions_under_way_and_those_behind_are_closed(world: DbWorld) -> None:
    await world.stock(a=5, b=5)
    async with world.gateways(2) as (first, second):
        async with world.database.transaction() as holding:
            # Somebody holds the balance, so that a decision stands in its middle, with the shard's row shared.
            await holding.fetch_all(Statement("SELECT 1 FROM inventory_balance WHERE inventory_key = 'a' FOR UPDATE"))
            deciding = asyncio.create_task(first.call([reserve("o1", a=1)]))
            await waiting(world, "inventory_balance")
            switching = asyncio.create_task(world.sql("UPDATE shard SET mode = 'opening' WHERE mode = 'db'"))
            await waiting(world, "UPDATE shard")
            # Behind the one who switches nobody slips in, whatever it is about.
            late = asyncio.create_task(second.call([reserve("o2", b=1)]))
            await waiting(world, "FROM shard")
            assert not any(task.done() for task in (deciding, switching, late))
        assert outcomes(await deciding) == ["DONE"]
        assert await switching == 1
        assert outcomes(await late) == ["SHARD_CLOSED not_executed"]
        assert await world.balance("b") == Quantities(5, 0, 0, 0, 0)


async def waiting(world: DbWorld, words: str) -> None:
    """Until a session of this database waits for a lock in a statement with these words."""
    async with asyncio.timeout(4):
        while not any(words in statement for statement in await world.statements_that_wait()):
            # The server shows no newer state to whoever asks again within 0.1 s.
            await asyncio.sleep(0.15)


# --- several at once ---


async def test_gateways_that_race_for_one_key_never_oversell_it(world: DbWorld) -> None:
    await world.stock(hot=100, cold=1_000)
    async with world.gateways(4) as paths:

        async def buy(number: int, path: DbPath) -> Counter[str]:
            found: Counter[str] = Counter()
            for tick in range(10):
                ops = [reserve(f"g{number}-{tick}-{i}", hot=1 + i % 3, cold=1, group=i) for i in range(8)]
                found.update(outcomes(await path.call(ops)))
            return found

        counted = sum(await asyncio.gather(*(buy(*pair) for pair in enumerate(paths))), Counter[str]())
    assert counted.keys() == {"DONE", "INSUFFICIENT_STOCK"}
    [(orders, units)] = await world.rows(
        "SELECT COUNT(DISTINCT tenant, order_id), SUM(qty) FROM inventory_reservation WHERE inventory_key = 'hot'"
    )
    assert (orders, units) == (counted["DONE"], 100)
    assert await world.balance("hot") == Quantities(0, 100, 0, 0, 0)
    assert await world.violations() == {}


async def test_each_order_and_each_request_is_taken_once_whoever_asks_at_once(world: DbWorld) -> None:
    """All gateways send the same ids, in different orders, about the same keys: nobody waits crosswise or takes twice."""
    await world.stock(**{f"k{i}": 1_000 for i in range(12)})
    random_source = random.Random(SEED)
    wanted = [reserve_all(f"o{i:02}", {f"k{i % 12}": 1, f"k{(i * 5 + 1) % 12}": 2}) for i in range(40)]
    wanted += [request_op(Move.ADJUST, f"r{i:02}", f"k{i % 12}", 5) for i in range(20)]
    async with world.gateways(4) as paths:

        async def ask(path: DbPath, order: list[Operation]) -> dict[str, list[str]]:
            found: dict[str, list[str]] = {}
            for first in range(0, len(order), 6):
                batch = order[first : first + 6]
                while batch:
                    answers = outcomes(await path.call(batch))
                    for op, answer in zip(batch, answers, strict=True):
                        found.setdefault(op.ref, []).append(answer)
                    # What others kept too busy is asked again, as its caller would.
                    batch = [
                        op for op, answer in zip(batch, answers, strict=True) if answer == "UNAVAILABLE not_executed"
                    ]
            return found

        orders = [random_source.sample(wanted, len(wanted)) for _ in paths]
        found = await asyncio.gather(*(ask(*pair) for pair in zip(paths, orders, strict=True)))
    for op in wanted:
        answers = [answer for one in found for answer in one[op.ref] if not answer.startswith("UNAVAILABLE")]
        assert sorted(answers) == ["DONE", "REPLAY", "REPLAY", "REPLAY"], op.ref
    assert (await world.rows("SELECT COUNT(*), SUM(line_count) FROM inventory_order"))[0] == (40, 80)
    assert await world.violations() == {}


async def test_settles_of_the_same_orders_race_and_each_line_takes_one_path(world: DbWorld) -> None:
    await world.stock(**{f"k{i}": 100 for i in range(6)})
    refs = [f"o{i}" for i in range(12)]
    await world.call(*(reserve_all(ref, {f"k{i % 6}": 1, f"k{(i + 1) % 6}": 1}, group=i) for i, ref in enumerate(refs)))
    kinds = [Move.CONFIRM, Move.RELEASE, Move.CONSUME, Move.RETURN, Move.READ, Move.EXTEND]
    async with world.gateways(4) as paths:

        async def settle(number: int, path: DbPath) -> Counter[str]:
            random_source = random.Random(SEED + number)
            found: Counter[str] = Counter()
            for _ in range(25):
                ops = [
                    order_op(kind, ref, group=i, ttl_ms=2 * LONG_MS)
                    for i, (kind, ref) in enumerate(
                        zip(random_source.choices(kinds, k=6), random_source.choices(refs, k=6), strict=True)
                    )
                ]
                found.update(outcomes(await path.call(ops)))
            return found

        counted = sum(await asyncio.gather(*(settle(*pair) for pair in enumerate(paths))), Counter[str]())
    assert counted.keys() <= {"DONE", "REPLAY", "ILLEGAL_TRANSITION"}
    assert await world.violations() == {}


async def test_an_order_that_came_to_be_while_its_key_was_waited_for_is_no_refusal(world: DbWorld) -> None:
    """The last unit went to this very order, through another gateway: its second attempt must find that."""
    await world.stock(a=1)
    async with world.gateways(1) as [slow]:
        async with world.database.transaction() as quick:
            await quick.fetch_all(Statement("SELECT 1 FROM inventory_balance WHERE inventory_key = 'a' FOR UPDATE"))
            asked = asyncio.create_task(slow.call([reserve("o1", a=1), order_op(Move.READ, "o1")]))
            await waiting(world, "inventory_balance")
            header = (TENANT, "o1", 0, reserve("o1", a=1).fingerprint, "", 1, 1, 1 << 45, EPOCH, 0, 1, 1)
            await quick.execute(Statement(f"INSERT INTO inventory_order VALUES ({', '.join(['%s'] * 12)})"), header)
            line = (TENANT, "o1", 1, "a", 1, 1, "", EPOCH, 2, 1)
            await quick.execute(Statement(f"INSERT INTO inventory_reservation VALUES ({', '.join(['%s'] * 10)})"), line)
            await quick.execute(Statement("UPDATE inventory_balance SET available = 0, reserved = 1, seq = 2"))
        assert outcomes(await asked) == ["REPLAY", "DONE"]


# --- failures ---


async def test_a_collision_that_does_not_end_is_not_executed(world: DbWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.stock(a=5)
    tries = 0

    async def refuse(*_: Any) -> Any:
        nonlocal tries
        tries += 1
        raise Retryable(1213, "deadlock")

    with monkeypatch.context() as patch:
        patch.setattr("inventory.db_path._Batch.write", refuse)
        assert outcomes(await world.path.call([reserve("o1", a=1)])) == ["UNAVAILABLE not_executed"]
    assert tries == 4
    assert outcomes(await world.path.call([reserve("o1", a=1)])) == ["DONE"]


async def test_a_lock_that_is_not_given_up_is_not_executed_in_bounded_time(servers: Servers) -> None:
    async with DbWorld.open(servers, mysql_timeout_ms=2_500, answer_deadline_ms=1_000) as world:
        await world.stock(a=5)
        async with world.gateways(1) as [path], world.database.transaction() as holding:
            await holding.fetch_all(Statement("SELECT 1 FROM inventory_balance WHERE inventory_key = 'a' FOR UPDATE"))
            async with asyncio.timeout(2.5):
                assert outcomes(await path.call([reserve("o1", a=1)])) == ["UNAVAILABLE not_executed"]
        assert outcomes(await world.path.call([reserve("o1", a=1)])) == ["DONE"]


async def test_a_database_that_is_away_or_not_migrated_is_not_executed(servers: Servers, world: DbWorld) -> None:
    await world.sql("DELETE FROM shard")
    assert outcomes(await world.path.call([reserve("o1", a=1)])) == ["UNAVAILABLE not_executed"]
    async with proxy_to(servers.mariadb.url) as proxy:
        settings = world.settings.model_copy(update={"mysql_url": through(proxy.url, world)})
        async with world.gateways(1, settings=settings) as [path]:
            await proxy.refuse()
            assert outcomes(await path.call([reserve("o1", a=1)])) == ["UNAVAILABLE not_executed"]


def through(url: Any, world: DbWorld) -> Any:
    secret = world.settings.mysql_url
    return type(secret)(url(secret.get_secret_value()))


async def test_a_lost_answer_to_commit_is_unknown_and_a_repeat_learns_what_happened(
    servers: Servers, world: DbWorld
) -> None:
    await world.stock(a=5)
    ops = [reserve("o1", a=1), request_op(Move.LOCK, "r1", "a", 1), reserve("o2", a=9)]
    async with proxy_to(servers.mariadb.url) as proxy:
        settings = world.settings.model_copy(update={"mysql_url": through(proxy.url, world), "mysql_timeout_ms": 1_000})
        async with world.gateways(1, settings=settings) as [path]:
            assert outcomes(await path.call([reserve("o0", a=1)])) == ["DONE"]
            proxy.hold(b"COMMIT")
            asked = asyncio.create_task(path.call(ops))
            async with asyncio.timeout(5):
                while not proxy.held:
                    await asyncio.sleep(0.01)
            proxy.drop_replies()
            proxy._released.set()
            assert outcomes(await asked) == 3 * ["UNAVAILABLE unknown"]
            proxy.restore()
            proxy.cut()
            # Nothing was written, so nothing can have happened.
            proxy.hold(b"COMMIT")
            assert outcomes(await path.call([order_op(Move.READ, "o1")])) == ["UNAVAILABLE not_executed"]
            proxy.restore()
            proxy.cut()
            assert outcomes(await until_answered(path, ops)) == ["REPLAY", "REPLAY", "INSUFFICIENT_STOCK"]
    assert await world.balance("a") == Quantities(2, 2, 0, 0, 1)
    assert await world.violations() == {}


async def until_answered(path: DbPath, ops: list[Operation]) -> Called:
    """A door that heard nothing for a while refuses at once until it has tried again."""
    async with asyncio.timeout(10):
        while isinstance((called := await path.call(ops)).decisions[0], Failure):
            await asyncio.sleep(0.05)
    return called


async def test_one_who_is_cancelled_in_the_middle_leaves_nothing(world: DbWorld) -> None:
    await world.stock(a=5)
    async with world.gateways(1) as [path]:
        async with world.database.transaction() as holding:
            await holding.fetch_all(Statement("SELECT 1 FROM inventory_balance WHERE inventory_key = 'a' FOR UPDATE"))
            asked = asyncio.create_task(path.call([reserve("o1", a=1)]))
            await waiting(world, "inventory_balance")
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
        assert outcomes(await path.call([reserve("o1", a=1)])) == ["DONE"]


# --- expiry ---


async def test_the_sweeper_releases_what_is_due_and_goes_past_what_is_held(world: DbWorld) -> None:
    await world.stock(a=5_000, b=10, c=5_000)
    due = limits.EXPIRE_ORDERS_MAX + 40
    for first in range(0, due, 100):
        ops = [reserve(f"h{i:04}", c=1, ttl_ms=0, group=i) for i in range(first, min(first + 100, due))]
        assert set(outcomes(await world.path.call(ops))) == {"DONE"}
    await world.call(reserve("due", a=1, b=2, ttl_ms=5), reserve("later", a=1), reserve("sold", a=1, ttl_ms=0))
    await world.sql("UPDATE inventory_reservation SET state = 2 WHERE order_id = 'sold'")
    await world.sql("UPDATE inventory_order SET open_lines = 0 WHERE order_id = 'sold'")
    await world.sql("UPDATE inventory_balance SET held = 1 WHERE inventory_key = 'c'")
    sweeper = DbSweeper(world.path, world.settings, world.database, 0)
    async with asyncio.timeout(5):
        while await world.balance("b") != Quantities(10, 0, 0, 0, 0):
            assert await sweeper.sweep(term=TERM) in {due, due + 1}
    lines = await world.rows("SELECT state, reason, order_id FROM inventory_reservation WHERE inventory_key <> 'c'")
    assert sorted(lines) == [
        (LineState.RESERVED, "", "later"),
        (LineState.CONFIRMED, "", "sold"),
        (LineState.RELEASED, EXPIRED, "due"),
        (LineState.RELEASED, EXPIRED, "due"),
    ]
    await world.sql("UPDATE inventory_balance SET held = 0 WHERE inventory_key = 'c'")
    assert await sweeper.sweep(term=TERM) == due
    assert await sweeper.sweep(term=TERM) == 0
    assert (await world.balance("c")).reserved == 0


async def test_the_sweeper_does_nothing_in_grace_in_another_mode_or_after_its_term(world: DbWorld) -> None:
    await world.stock(a=5)
    await world.call(reserve("o1", a=1, ttl_ms=0))
    settings = world.settings.model_copy(update={"hold_grace_ms": 60_000})
    sweeper = DbSweeper(DbPath(settings, world.database, 0), settings, world.database, 0)
    await world.sql("UPDATE shard SET since_ms = UNIX_TIMESTAMP(NOW(3)) * 1000")
    assert await sweeper.sweep() == 0
    await world.sql("UPDATE shard SET since_ms = since_ms - 60000")
    assert await sweeper.sweep(term=TERM - 1) == 0
    await world.set_mode("hot")
    assert await sweeper.sweep() == 0
    await world.set_mode("db")
    assert await sweeper.sweep() == 1
    assert await world.balance("a") == Quantities(5, 0, 0, 0, 0)


async def test_looking_for_what_is_due_reads_no_order_that_is_not(world: DbWorld) -> None:
    await world.stock(a=1_000_000)
    await world.sql(
        "INSERT INTO inventory_order SELECT 'shop', CONCAT('o', seq), 0, '', '', 5, 1 + MOD(seq, 5), 1 << 45, 1, 1, 1, 1"
        " FROM seq_1_to_20000"
    )
    await world.sql("UPDATE inventory_order SET due_ms = 1 WHERE order_id IN ('o7', 'o11')")
    await world.sql("ANALYZE TABLE inventory_order")
    database = await Database.open(world.settings, name="count", pool_max=1)
    sweeper = DbSweeper(DbPath(world.settings, world.database, 0), world.settings, database, 0)
    counters = Statement("SHOW SESSION STATUS LIKE 'Handler_read%%'")

    async def reads() -> int:
        return sum(int(value) for _, value in await database.fetch_all(counters))

    before = await reads()
    assert await sweeper.sweep() == 2
    assert await reads() - before < 2_000
    await database.close()
