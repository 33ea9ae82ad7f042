"""The persist worker on real servers: repeats, holes, poison, two at once, CLOSE, alarms, and servers that fail."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from inventory import ledger
from inventory.events import genesis
from inventory.sequence import GAP_ALARM_MS, GapMemory, read_message
from kernel import limits, logs
from kernel.amqp_door import Delivery
from kernel.clock import SYSTEM_CLOCK
from kernel.errors import Retryable
from kernel.mysql_door import Database, Statement
from persist_worker.apply import Applier
from persist_worker.gather import Received
from stockgate.servers import Servers
from tests.integration.worker_world import WorkerWorld
from tests.log_builder import LogBuilder, random_log
from tests.proxy import proxy_to


@pytest.fixture
async def world(servers: Servers, tmp_path: Path) -> AsyncGenerator[WorkerWorld]:
    async with WorkerWorld.open(servers, tmp_path) as world:
        yield world


def small_log(entries: int = 6, key: str = "a") -> LogBuilder:
    log = LogBuilder()
    for _ in range(entries):
        log.adjust(key, 5)
        log.entry()
    return log


# --- delivery -----------------------------------------------------------------


async def test_what_the_leader_publishes_is_what_mysql_has(world: WorkerWorld) -> None:
    log = random_log(1, operations=1_000, keys=20)
    await world.begin(log)
    async with world.worker():
        await world.publish(log.messages(3))
        await world.until_applied(log)
    await world.check(log)
    row = await world.row()
    assert (row.applied_digest, row.wanted_m, row.alarm) == (log.digest, 0, "")
    assert row.applied_event_ms == log.now_ms
    assert await world.ready_messages() == 0


async def test_every_message_twice_and_overlapping(world: WorkerWorld) -> None:
    log = random_log(2, operations=300)
    await world.begin(log)
    overlapping = [log.message(max(1, m - 4), m) for m in range(1, log.head_m + 1)]
    async with world.worker():
        await world.publish([body for body in overlapping for _ in range(2)])
        await world.until_applied(log)
    await world.check(log)
    assert await world.ready_messages() == 0
    duplicates = world.metrics.registry.get_sample_value("stockgate_worker_duplicates_total")
    assert duplicates is not None
    assert duplicates > log.head_m


async def test_hole_is_wanted_and_filled_again(world: WorkerWorld) -> None:
    log = random_log(3, operations=200)
    await world.begin(log)
    bodies = log.messages()
    hole = log.head_m // 2
    async with world.worker():
        await world.publish([*bodies[: hole - 1], *bodies[hole : hole + 8]])

        async def wanted() -> bool:
            row = await world.row()
            return (row.applied_m, row.wanted_m) == (hole - 1, hole)

        await world.until(wanted, "the hole is wanted")
        await world.publish(bodies[hole - 1 :])
        await world.until_applied(log)
    await world.check(log)
    assert (await world.row()).wanted_m == 0


async def test_only_sixteen_messages_wait_for_a_hole(world: WorkerWorld) -> None:
    log = small_log(limits.WORKER_PREFETCH_MESSAGES + 40)
    await world.begin(log)
    bodies = log.messages()
    async with world.worker():
        # More than the prefetch: were all of them kept, the missing one would never be delivered.
        await world.publish(bodies[1:])

        async def only_held_left() -> bool:
            return await world.waiting_messages() == limits.WORKER_HELD_MESSAGES_MAX

        await world.until(only_held_left, "16 held, the rest given up")
        await world.publish([bodies[0]])

        async def next_wanted() -> bool:
            return (await world.row()).wanted_m == limits.WORKER_HELD_MESSAGES_MAX + 2

        await world.until(next_wanted, "what was given up is wanted")
        await world.publish(bodies[limits.WORKER_HELD_MESSAGES_MAX + 1 :])
        await world.until_applied(log)
    await world.check(log)


async def test_gap_that_stays_is_an_alarm_until_it_is_filled(world: WorkerWorld) -> None:
    log = small_log(3)
    await world.begin(log)
    async with world.worker() as worker:
        await world.publish([log.message(2)])

        async def alarmed() -> bool:
            return (await world.row()).alarm == "GAP"

        await world.until(alarmed, "the gap is an alarm", GAP_ALARM_MS / 1000 + 5)
        assert "GAP" in worker.missing()["shard 0"]
        assert (await world.row()).applied_m == 0
        await world.publish(log.messages())
        await world.until_applied(log)
        assert (await world.row()).alarm == ""
        assert not worker.missing()
    await world.check(log)


# --- poison -------------------------------------------------------------------


async def test_poison_among_a_thousand_good_ones_holds_its_key_only(world: WorkerWorld) -> None:
    log = random_log(4, operations=1_200, keys=12)
    poisoned = sorted(log.keys)[5]
    await world.begin(log)
    # Its first event says seq 1: it cannot follow seq 4.
    await world.sql("UPDATE inventory_balance SET seq = 4 WHERE inventory_key = %s", poisoned)
    async with world.worker():
        await world.publish(log.messages(5))
        await world.until_applied(log)
    await world.check(log, without=[poisoned])
    assert await world.balance(poisoned) == (0, 0, 0, 0, 0, 4, 0, 1)
    parked = await world.query(
        "SELECT seq, reason FROM inventory_parked_event WHERE inventory_key = %s ORDER BY epoch, m, change_no", poisoned
    )
    assert [seq for seq, _ in parked] == list(range(1, log.keys[poisoned].seq + 1))
    assert parked[0][1] == "seq 1 after 4"
    row = await world.row()
    assert (row.alarm, row.held_version) == ("", 1)
    get = world.metrics.registry.get_sample_value
    assert get("stockgate_applied_m", {"shard": "0"}) == log.head_m


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"trace_id": "t" * 65}, "1406"),
        ({"reason": "r" * 201}, "1406"),
        ({"actor": "käfer"}, "1366"),
        ({"at_ms": 2**63}, "out of range"),
        ({"at_ms": -1}, "out of range"),
        ({"ref": "o" * 65}, "1406"),
        ({"tenant": "t" * 33}, "1406"),
    ],
)
async def test_event_that_no_row_can_hold_is_found_and_parked(
    world: WorkerWorld, damage: dict[str, Any], said: str
) -> None:
    log = random_log(5, operations=100, keys=6)
    log.adjust("bad", 10)
    log.pending[0] = msgspec.structs.replace(log.pending[0], **damage)
    log.adjust("good", 10)
    log.entry()
    for key in list(log.keys)[:4]:
        log.adjust(key, 1)
    log.entry()
    await world.begin(log)
    async with world.worker():
        await world.publish([log.message(1, log.head_m)])
        await world.until_applied(log)
    await world.check(log, without=["bad"])
    assert (await world.balance("bad"))[5:] == (0, 0, 1)
    ((reason,),) = await world.query("SELECT reason FROM inventory_parked_event")
    assert said in reason


async def test_ledger_row_that_is_there_already_holds_the_key(world: WorkerWorld) -> None:
    """A balance that was put back behind its ledger: the ledger's key speaks, not the plan."""
    log = small_log(2)
    log.adjust("b", 1)
    log.entry()
    await world.begin(log)
    await world.apply(log.message(1))
    await world.sql("UPDATE inventory_balance SET available = 0, total = 0, seq = 0, inventory_version = 0")
    await world.sql("DELETE FROM inventory_request")
    await world.sql("UPDATE shard SET applied_m = 0, applied_digest = %s", genesis(0, 1))
    async with world.worker():
        await world.publish(log.messages())
        await world.until_applied(log)
    reasons = await world.query("SELECT reason FROM inventory_parked_event ORDER BY m")
    assert "1062" in reasons[0][0]
    assert reasons[1][0] == "behind a held event"
    await world.check(log, without=["a"])


async def test_key_without_a_balance_is_held(world: WorkerWorld) -> None:
    log = small_log(1)
    await world.begin(log)
    log.adjust("nobody", 3)
    log.entry()
    async with world.worker():
        await world.publish(log.messages())
        await world.until_applied(log)
    assert await world.balance("nobody") == (0, 0, 0, 0, 0, 0, 0, 1)
    await world.check(log, without=["nobody"])


async def test_message_that_is_none_is_listed_once_and_nothing_stops(world: WorkerWorld) -> None:
    log = small_log(2)
    await world.begin(log)
    async with world.worker():
        await world.publish([b"\xc1 garbage", log.message(1), b"\xc1 garbage", log.message(2)])
        await world.until_applied(log)
    assert await world.query("SELECT epoch, m, payload FROM stale_event") == [(0, 0, b"\xc1 garbage")]


# --- epochs and alarms ----------------------------------------------------------


async def test_close_through_the_queue_ends_the_epoch_behind_everything(world: WorkerWorld) -> None:
    log = random_log(6, operations=300)
    await world.begin(log)
    before = log.head_m
    async with world.worker():
        await world.publish([*log.messages(4), log.close_message(next_mode="db")])

        async def closed() -> bool:
            return (await world.row()).mode == "db"

        await world.until(closed, "the CLOSE is obeyed")
        row = await world.row()
        # In mode db MySQL decides, in an epoch of its own.
        assert (row.epoch, row.applied_m, row.applied_digest, row.wanted_m) == (2, 0, genesis(0, 2), 0)
        assert row.since_ms > 0
        await world.check(log)
        # What comes later of this epoch has no effect and is listed; what is sent again of it is not.
        log.adjust(next(iter(log.keys)), 1)
        log.entry()
        late = log.message(before, log.head_m)
        await world.publish([late, late, log.close_message()])

        async def listed() -> bool:
            return await world.query("SELECT COUNT(*) FROM stale_event") == [(1,)]

        await world.until(listed, "late messages are taken")
    assert await world.ready_messages() == 0
    assert await world.query("SELECT epoch, m, digest FROM stale_event") == [(1, before + 1, log.digest)]
    assert ((await world.row()).mode, (await world.row()).epoch) == ("db", 2)


async def test_next_epoch_goes_on_with_the_seqs_of_the_last(world: WorkerWorld) -> None:
    log = random_log(7, operations=100)
    await world.begin(log)
    first = log.messages(2)
    async with world.worker():
        await world.publish([*first, log.close_message()])

        async def closed() -> bool:
            return (await world.row()).mode == "opening"

        await world.until(closed, "closed")
        log.open_next_epoch()
        log.term = 2
        for key in log.keys:
            log.adjust(key, 3)
        log.entry()
        await world.sql(
            "UPDATE shard SET mode = 'hot', epoch = 2, term = 2, applied_m = 0, applied_digest = %s", genesis(0, 2)
        )
        # The old leader's last words come again between the new one's: of an older term, so nobody lists them.
        await world.publish([log.term_message(2), *first[-3:], log.message(1)])
        await world.until_applied(log)
    await world.check(log)
    assert await world.query("SELECT COUNT(*) FROM stale_event") == [(0,)]
    assert world.metrics.registry.get_sample_value("stockgate_worker_skipped_term_total") == 3


async def test_foreign_entry_stops_the_shard_and_the_operator_mends_it(world: WorkerWorld) -> None:
    log, fork = small_log(4), small_log(2)
    fork.adjust("a", 9)
    fork.entry()
    await world.begin(log)
    async with world.worker() as worker:
        await world.publish([log.message(1), log.message(2), log.message(3), fork.message(3), log.message(4)])

        async def alarmed() -> bool:
            return (await world.row()).alarm == "FORK"

        await world.until(alarmed, "the alarm is in the row")
        row = await world.row()
        assert row.applied_m == 3
        assert log.entries[2][0] in row.alarm_detail

        # The row is committed a moment before the worker speaks of it.
        async def told() -> bool:
            return "FORK" in worker.missing().get("shard 0", "")

        await world.until(told, "the worker says so")
        get = world.metrics.registry.get_sample_value
        assert get("stockgate_worker_alarm", {"shard": "0", "alarm": "FORK"}) == 1

        # Its messages are in the queue again, unacknowledged, for the operator to look at.
        async def returned() -> bool:
            return await world.purge_queue() == 2

        await world.until(returned, "the messages went back into the queue")
        await world.sql("UPDATE shard SET alarm = '', alarm_detail = ''")
        await world.publish([log.message(4)])
        await world.until_applied(log)

        async def ready() -> bool:
            return not worker.missing()

        await world.until(ready, "the worker is ready again")
        assert get("stockgate_worker_alarm", {"shard": "0", "alarm": "FORK"}) == 0
    await world.check(log)


async def test_stopped_shard_goes_on_by_itself_when_the_row_changes(world: WorkerWorld) -> None:
    """Entries of an epoch that the row does not have yet: as soon as it has it, they are taken."""
    log = small_log(3)
    await world.begin(log)
    async with world.worker():
        await world.publish([log.message(1, 3), log.close_message()])
        log.open_next_epoch()
        log.adjust("a", 1)
        log.entry()
        await world.publish(log.messages())

        async def alarmed() -> bool:
            return (await world.row()).alarm == "EPOCH_AHEAD"

        await world.until(alarmed, "stopped")
        await world.sql("UPDATE shard SET mode = 'hot', epoch = 2, applied_m = 0, applied_digest = %s", genesis(0, 2))
        await world.until_applied(log)
        assert (await world.row()).alarm == ""
    await world.check(log)


# --- two at once ---------------------------------------------------------------


async def test_two_workers_on_one_shard_do_no_harm(world: WorkerWorld) -> None:
    """Without the single active consumer: both get everything, in pieces of their own, and now and then too early."""
    log = random_log(8, operations=600, keys=10)
    await world.begin(log)

    async def work(seed: int) -> None:
        chance, stop = random.Random(seed), asyncio.Event()
        applier = Applier(world.database, 0, SYSTEM_CLOCK, logs.get_logger())
        m = 1
        while m <= log.head_m:
            last = min(log.head_m, m + chance.randint(0, 12))
            body = log.message(max(1, m - chance.randint(0, 3)), last)
            await applier.apply([Received(Delivery(body, m, "", False), read_message(body, 0))], stop)
            m = last + 1

    async with asyncio.TaskGroup() as group:
        for seed in range(3):
            group.create_task(work(seed))
    await world.check(log)
    assert (await world.row()).applied_m == log.head_m


@pytest.mark.parametrize("point", ["worker.before_commit", "worker.after_commit", "worker.after_ack"])
async def test_worker_killed_at_a_point_and_another_takes_over(world: WorkerWorld, point: str) -> None:
    log = random_log(9, operations=400)
    await world.begin(log)
    doomed = world.process(f"{point}=kill@2")
    bodies = log.messages()
    await world.publish(bodies[:20])

    async def first_batch() -> bool:
        return (await world.row()).applied_m > 0

    await world.until(first_batch, "the first batch is applied", 30)
    await world.publish(bodies[20:])
    async with asyncio.timeout(20):
        assert await doomed.wait() == -signal.SIGKILL
    async with world.worker():
        await world.until_applied(log)
    await world.check(log)
    assert await world.query("SELECT COUNT(*) FROM stale_event") == [(0,)]


async def test_sigterm_finishes_and_leaves_the_rest_in_the_queue(world: WorkerWorld) -> None:
    log = random_log(10, operations=800)
    await world.begin(log)
    child = world.process()
    await world.publish(log.messages())

    async def begun() -> bool:
        return (await world.row()).applied_m > 0

    await world.until(begun, "it works", 30)
    await child.kill(signal.SIGTERM)
    async with asyncio.timeout(15):
        assert await child.wait() == 0
    async with world.worker():
        await world.until_applied(log)
    await world.check(log)


# --- MySQL in trouble ------------------------------------------------------------


async def test_mariadb_killed_in_the_middle(world: WorkerWorld) -> None:
    log = random_log(11, operations=1_500, keys=20)
    await world.begin(log)
    async with world.worker() as worker:
        async with asyncio.TaskGroup() as group:
            group.create_task(world.publish(log.messages()))

            async def begun() -> bool:
                return (await world.row()).applied_m > 20

            await world.until(begun, "it works")
            await world.servers.mariadb.kill()

        async def noticed() -> bool:
            return "mysql" in worker.missing()

        await world.until(noticed, "readiness says that MySQL is missing")
        await world.servers.mariadb.start()
        await world.until_applied(log, 30)
    await world.check(log)


async def test_rabbitmq_killed_in_the_middle(world: WorkerWorld) -> None:
    log = random_log(12, operations=600)
    await world.begin(log)
    # Killed within 5 s of its declaration, a quorum queue of this broker has lost the name of its only member for ever.
    await asyncio.sleep(6)
    await world.publish(log.messages())
    async with world.worker() as worker:

        async def begun() -> bool:
            return (await world.row()).applied_m > 0

        await world.until(begun, "it works")
        await world.servers.rabbitmq.kill()

        async def noticed() -> bool:
            return "rabbitmq" in worker.missing()

        await world.until(noticed, "readiness says that RabbitMQ is missing")
        await world.servers.rabbitmq.start()
        await world.until_applied(log, 40)
    await world.check(log)


async def test_lost_answer_to_commit_is_asked_again_and_counts_once(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = random_log(13, operations=100)
    await world.begin(log)
    lost: list[str] = []
    async with proxy_to(world.settings.mysql_url.get_secret_value()) as proxy:

        def lose_once(point: str) -> None:
            if point == "worker.before_commit" and not lost:
                lost.append(point)
                proxy.drop_replies()
                asyncio.get_running_loop().call_later(1.0, proxy.restore)

        monkeypatch.setattr(ledger, "hit", lose_once)
        url = proxy.url(world.settings.mysql_url.get_secret_value())
        settings = world.settings.model_copy(update={"mysql_url": SecretStr(url), "mysql_timeout_ms": 800})
        async with world.worker(settings):
            await world.publish([log.message(1, log.head_m)])
            await world.until_applied(log)

            async def acknowledged() -> bool:
                return world.metrics.registry.get_sample_value("stockgate_worker_duplicates_total") == log.head_m

            await world.until(acknowledged, "the batch is found applied")
    assert await world.ready_messages() == 0
    assert lost
    await world.check(log)


async def test_foreign_lock_leaves_no_part_and_is_waited_out(world: WorkerWorld) -> None:
    log = small_log(1, "b")
    log.adjust("a", 5)
    log.entry()
    await world.begin(log)
    async with world.database.transaction() as foreign:
        await foreign.fetch_all(Statement("SELECT 1 FROM inventory_balance WHERE inventory_key = 'b' FOR UPDATE"))
        with pytest.raises(Retryable, match="1205"):
            await world.apply(*log.messages())
        assert await world.query("SELECT COUNT(*) FROM inventory_ledger") == [(0,)]
        assert (await world.row()).applied_m == 0
        async with world.worker():
            await world.publish(log.messages())
            for _ in range(6):
                await asyncio.sleep(0.4)
                await foreign.fetch_all(Statement("SELECT 1"))
            assert (await world.row()).applied_m == 0
            # The block ends after the worker's: the foreign transaction ends here.
            await foreign.execute(Statement("COMMIT"))
            await world.until_applied(log)
    await world.check(log)


async def test_deadlock_is_retried(world: WorkerWorld) -> None:
    log = small_log(2)
    await world.begin(log)
    await world.sql("CREATE TABLE ballast (a INT)")
    stop = asyncio.Event()
    applier = Applier(world.database, 0, SYSTEM_CLOCK, logs.get_logger())
    body = log.message(1, 2)
    async with world.database.transaction() as foreign:
        # Heavier than the worker's transaction, so that the worker is the one that is undone.
        await foreign.execute_many(Statement("INSERT INTO ballast (a) VALUES (%s)"), [(n,) for n in range(2_000)])
        await foreign.fetch_all(Statement("SELECT 1 FROM inventory_balance WHERE inventory_key = 'a' FOR UPDATE"))
        task = asyncio.create_task(applier.apply([Received(Delivery(body, 1, "", False), read_message(body, 0))], stop))
        await asyncio.sleep(0.3)
        # The worker holds the shard's row and waits for the balance: now both wait, and the lighter one loses.
        await foreign.fetch_all(Statement("SELECT 1 FROM shard WHERE shard_no = 0 FOR UPDATE"))
        assert not task.done()
    await task
    await world.check(log)


async def test_every_connection_killed_again_and_again(world: WorkerWorld) -> None:
    log = random_log(14, operations=1_500, keys=20)
    await world.begin(log)
    user = "SELECT id FROM information_schema.processlist WHERE user = 'stockgate'"
    async with world.worker():
        async with asyncio.TaskGroup() as group:
            group.create_task(world.publish(log.messages()))
            for _ in range(8):
                await asyncio.sleep(0.15)
                ids = (await world.servers.mariadb.execute(user)).split()
                for number in ids:
                    await world.servers.mariadb.execute(f"KILL {number}; SELECT 1") if number else None
        await world.until_applied(log, 30)
    await world.check(log)


async def test_read_only_server_is_waited_for_without_acknowledging(world: WorkerWorld) -> None:
    log = small_log(3)
    await world.begin(log)
    await world.servers.mariadb.execute("SET GLOBAL read_only = 1")
    try:
        async with world.worker() as worker:
            await world.publish(log.messages())

            async def noticed() -> bool:
                return "READ_ONLY" in worker.missing().get("mysql", "")

            await world.until(noticed, "readiness says so")

            async def kept() -> bool:
                return await world.waiting_messages() == 3

            await world.until(kept, "the messages stay")
            await world.servers.mariadb.execute("SET GLOBAL read_only = 0")
            await world.until_applied(log)
            assert not worker.missing()
    finally:
        await world.servers.mariadb.execute("SET GLOBAL read_only = 0")
    await world.check(log)


async def test_small_packets_only_make_more_of_them(world: WorkerWorld) -> None:
    log = random_log(15, operations=1_500, keys=20)
    await world.begin(log)
    await world.servers.mariadb.execute("SET GLOBAL max_allowed_packet = 65536")
    try:
        database = await Database.open(world.settings, name="small")
        incoming = [read_message(log.message(1, log.head_m), 0)]
        await ledger.apply_batch(database, ledger.Batch(0, incoming, GapMemory(), {}), SYSTEM_CLOCK)
        await database.close()
    finally:
        await world.servers.mariadb.execute("SET GLOBAL max_allowed_packet = 67108864")
    await world.check(log)


async def test_transaction_paused_too_long_is_undone_and_done_again(
    world: WorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is stopped before COMMIT and continues after the server has ended its transaction."""
    log = small_log(3)
    await world.begin(log)
    paused: list[str] = []

    def pause_once(point: str) -> None:
        if point == "worker.before_commit" and not paused:
            paused.append(point)
            time.sleep(4.5)

    monkeypatch.setattr(ledger, "hit", pause_once)
    stop = asyncio.Event()
    applier = Applier(world.database, 0, SYSTEM_CLOCK, logs.get_logger())
    body = log.message(1, 3)
    await applier.apply([Received(Delivery(body, 1, "", False), read_message(body, 0))], stop)
    assert paused
    await world.check(log)
