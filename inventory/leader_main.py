"""A leader as a process of its own, for a shard whose gateways are not to lead."""

import asyncio
from collections.abc import Mapping

from inventory.leader import Leader
from kernel import health, logs
from kernel.metrics import Metrics
from kernel.mysql_door import Database
from kernel.process import run_until_signal
from kernel.settings import Settings


def run(settings: Settings) -> int:
    """Stand and lead until SIGTERM or SIGINT; the exit code."""
    logs.configure(settings, "leader")
    return run_until_signal(lambda stop: _main(settings, stop), settings)


async def _main(settings: Settings, stop: asyncio.Event) -> int:
    metrics = Metrics()
    database = await Database.open(settings, name="leader")
    leaders = [Leader(settings, shard, database=database, metrics=metrics) for shard in range(settings.shards)]

    def missing() -> Mapping[str, str]:
        # A candidate without the lock is ready: it waits for it. One that cannot even ask for it is not.
        return {f"shard {leader.shard}": leader.failure for leader in leaders if leader.failure}

    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(health.serve(settings, missing, metrics), name="health")
            async with asyncio.TaskGroup() as standing:
                for leader in leaders:
                    standing.create_task(leader.run(stop))
            serving.cancel()
    finally:
        await database.close()
    return 0
