"""A leader as a process of its own, for a shard whose gateways are not to lead."""

import asyncio
from collections.abc import Mapping

from inventory.doctor_mysql import watched_mysql
from inventory.doctor_rabbitmq import watched_rabbitmq
from inventory.doctor_redis import watched_redis
from inventory.leader import Leader
from kernel import health, logs
from kernel.metrics import Metrics
from kernel.mysql_door import Database
from kernel.process import run_until_signal
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from kernel.settings_watch import SettingsWatch


def run(settings: Settings) -> int:
    """Stand and lead until SIGTERM or SIGINT; the exit code."""
    logs.configure(settings, "leader")
    return run_until_signal(lambda stop: _main(settings, stop), settings)


async def _main(settings: Settings, stop: asyncio.Event) -> int:
    metrics = Metrics()
    metrics.describe("leader")
    database = await Database.open(settings, name="leader", metrics=metrics)
    leaders = [Leader(settings, shard, database=database, metrics=metrics) for shard in range(settings.shards)]

    looking = RedisDoor.open(settings, name="leader.looking")

    def connections() -> int:
        return sum(leader.connections for leader in leaders)

    checks = (
        watched_redis(looking, settings),
        watched_mysql(database),
        watched_rabbitmq(settings, "leader", connections),
    )
    watch = SettingsWatch(settings, checks, log=logs.get_logger(), metrics=metrics)

    def missing() -> Mapping[str, str]:
        # A candidate without the lock is ready: it waits for it. One that cannot even ask for it is not.
        own = {f"shard {leader.shard}": leader.failure for leader in leaders if leader.failure}
        ending = {"leader": "shutting down"} if stop.is_set() else {}
        return own | watch.missing() | ending

    try:
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(part) for part in (health.serve(settings, missing, metrics), watch.run())]
            async with asyncio.TaskGroup() as standing:
                for leader in leaders:
                    standing.create_task(leader.run(stop))
            for task in beside:
                task.cancel()
    finally:
        await looking.close()
        await database.close()
    return 0
