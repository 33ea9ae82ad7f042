"""Worker, leader and reconciler cancelled at every await: whoever comes next goes on, and each effect is there once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from inventory.leader import Leader
from inventory.sequence import read_message
from kernel import logs
from kernel.amqp_door import Delivery
from kernel.clock import SYSTEM_CLOCK
from kernel.metrics import Metrics
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys
from persist_worker.apply import Applier
from persist_worker.gather import Received
from reconciler.passes import Reconciler
from stockgate.servers import Servers
from tests.cancelling import Ended, EveryStep, When, cancelled_at, sweep
from tests.integration.gateway_world import GatewayWorld, held_open
from tests.integration.leader_world import SHARD, LeaderWorld
from tests.integration.worker_world import WorkerWorld
from tests.log_builder import random_log

LEADER_PLACES = range(40, 1_400, 170)
"""Steps of the system after which a leader is cancelled: from its first connect until long after it leads."""


@pytest.mark.timeout(300)
async def test_the_worker_applies_each_message_once_wherever_it_is_cancelled(servers: Servers, tmp_path: Path) -> None:
    async with WorkerWorld.open(servers, tmp_path) as world:
        log = random_log(7, operations=1_500, keys=8)
        await world.begin(log)
        bodies = iter(log.messages(3))
        database = await Database.open(world.settings, name="worker", pool_max=1)

        async def attempt(n: int, when: When) -> Ended:
            body = next(bodies)
            received = [Received(Delivery(body, n, "", redelivered=False), read_message(body, 0))]

            applier = Applier(database, 0, SYSTEM_CLOCK, logs.get_logger())
            ended = await cancelled_at(n, applier.apply(received, asyncio.Event()), when)
            # Not acknowledged: it is delivered again, to another worker perhaps. The one session answers for itself.
            again = await Applier(database, 0, SYSTEM_CLOCK, logs.get_logger()).apply(received, asyncio.Event())
            assert again.all_done
            assert again.acknowledge == [received[0].delivery]
            return ended

        for when in When:
            assert await sweep(partial(attempt, when=when)) > 10
        async with world.worker():
            await world.publish(bodies)
            await world.until_applied(log)
        await world.check(log)
        await database.close()


@pytest.mark.timeout(300)
async def test_a_leader_may_be_cancelled_at_any_step_of_taking_over_relaying_closing_and_opening(
    servers: Servers, tmp_path: Path
) -> None:
    steps = EveryStep()
    async with steps.installed(), LeaderWorld.open(servers, tmp_path) as world, AsyncExitStack() as leading:
        cancelled = 0
        async with world.buyers(2):
            for number, place in enumerate(LEADER_PLACES):
                if number % 2:
                    # The next leader has an epoch to close and another to open.
                    await world.sql("UPDATE shard SET rebuild_wanted = 1, rebuild_reason = 'a test' WHERE mode = 'hot'")
                database = await Database.open(world.settings, name="leader", pool_max=3)
                leader = Leader(world.settings, SHARD, database=database, metrics=Metrics())
                ended = await steps.cancelled_at(place, leader.run(asyncio.Event()))
                cancelled += ended.cancelled
                assert not leader.status.leading
                await database.close()
            await leading.enter_async_context(world.leader())
            await world.decides(limit_s=60)
            await world.more_answers(10, limit_s=60)
        await world.check()
        assert cancelled == len(LEADER_PLACES)


@pytest.fixture
async def gateway(servers: Servers, tmp_path: Path) -> AsyncGenerator[GatewayWorld]:
    async with held_open(servers, tmp_path) as world:
        yield world


@pytest.mark.timeout(300)
async def test_a_comparison_may_be_broken_off_anywhere(gateway: GatewayWorld) -> None:
    world = gateway
    redis = RedisDoor.open(world.settings, name="reconciler")
    database = await Database.open(world.settings, name="reconciler", pool_max=1)
    key = await world.stocked(10)
    await world.reserved(key)
    await world.check_audit()
    names = EpochKeys(SHARD, world.state["watch"].hot_epoch)
    before = await world.quantities(key)
    repaired = 0

    async def attempt(n: int) -> Ended:
        nonlocal repaired
        await redis.command("HINCRBY", names.balance(key), "available", 5)

        def reconciler() -> Reconciler:
            return Reconciler(database, redis, SHARD, clock=SYSTEM_CLOCK, in_flight_alarm_s=60)

        when = When.BEGINS if n & 1 else When.IS_OVER
        ended = await cancelled_at(n, reconciler().run([key], dry_run=False, requested_by="test"), when)
        findings = await reconciler().run([key], dry_run=False, requested_by="test")
        assert findings is not None
        repaired += len(findings.found)
        assert await world.quantities(key) == before, f"cancelled at {n}"
        return ended

    assert await sweep(attempt) > 5
    assert repaired > 1, "some were broken off before they had repaired anything"
    await redis.close()
    await database.close()
    await world.check_audit()
