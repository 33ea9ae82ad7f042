"""The composition: opens what the calls need, keeps it running, and closes it in the order that loses nothing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final

from starlette.applications import Starlette

from gateway.call import Endpoint, Lifecycle, State
from gateway.contract import contract
from gateway.dispatch import Dispatch
from gateway.health import Looked
from gateway.operators import SHARD
from inventory.batcher import Batcher
from inventory.catalogue import Catalogue
from inventory.confirmations import Confirmations
from inventory.db_path import DbPath
from inventory.doctor_mysql import watched_mysql
from inventory.doctor_rabbitmq import watched_rabbitmq
from inventory.doctor_redis import watched_redis
from inventory.hot_path import HotPath
from inventory.leader import Leader
from inventory.loading import Loader
from inventory.shard_path import ShardPath
from inventory.shard_state import ShardWatch
from inventory.status import Overview
from kernel.auth import KeyRing
from kernel.health import serve
from kernel.logs import get_logger
from kernel.metrics import Metrics
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from kernel.settings_watch import SettingsWatch

LEADER_POOL_MAX: Final = 3


def create_app(settings: Settings, lifecycle: Lifecycle, more: tuple[Endpoint, ...] = ()) -> Dispatch:
    """The ASGI application. `more` are endpoints of other parts of the all-in-one process."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncGenerator[State]:
        async with open_state(settings, lifecycle) as state:
            yield state

    inner = Starlette(lifespan=lifespan)
    endpoints = contract(version("stockgate"), more, settings.hold_ttl_max_s)
    return Dispatch(endpoints, inner, settings, get_logger())


def _metrics(settings: Settings) -> Metrics:
    metrics = Metrics()
    metrics.describe("gateway")
    metrics.unconfirmed_bytes_max.labels("reserve").set(settings.unconfirmed_bytes_reserve_max)
    metrics.unconfirmed_bytes_max.labels("settle").set(settings.unconfirmed_bytes_settle_max)
    return metrics


@asynccontextmanager
async def open_state(settings: Settings, lifecycle: Lifecycle) -> AsyncGenerator[State]:
    """Everything the calls use, running. Raises OSError or ValueError for a file of keys that is of no use.

    Opening needs no store: they are connected at first use, and readiness tells what is missing. A background task that
    fails is a bug: it ends the lot, and `lifecycle.failed` says so.
    """
    metrics, keys = _metrics(settings), KeyRing.load(settings)
    database = await Database.open(settings, name="gateway", metrics=metrics)
    leader_database = await Database.open(settings, name="gateway.leader", pool_max=LEADER_POOL_MAX, metrics=metrics)
    # One connection decides, so that the order of calls is kept; the others never stand in its way.
    deciding, loading, asking, looking = (
        RedisDoor.open(settings, name=f"gateway.{part}", metrics=metrics)
        for part in ("deciding", "loading", "asking", "looking")
    )
    watch = ShardWatch(database, SHARD)
    confirmations = Confirmations(settings, asking, SHARD)
    hot_path = HotPath(settings, deciding, Loader(database, loading, SHARD), watch, confirmations)
    metrics.namings_missed_total.tell(lambda: confirmations.missed)
    db_path = DbPath(settings, database, SHARD)
    batcher = Batcher(settings, ShardPath(watch, hot_path, db_path), confirmations, metrics)
    # Who leads hears of his own confirms at once; the others when he has named them.
    leader = Leader(
        settings, SHARD, database=leader_database, metrics=metrics, name="gateway.leader", tell=confirmations.take
    )
    checks = [watched_redis(looking, settings), watched_mysql(database)]
    if settings.run_leader:
        # Who does not lead needs no way to the broker.
        checks.append(watched_rabbitmq(settings, "gateway", lambda: leader.connections))
    settings_watch = SettingsWatch(settings, checks, log=get_logger(), metrics=metrics)
    resign = asyncio.Event()
    state = State(
        settings=settings,
        lifecycle=lifecycle,
        keys=keys,
        batcher=batcher,
        hot_path=hot_path,
        watch=watch,
        confirmations=confirmations,
        catalogue=Catalogue(database, settings.shards),
        overview=Overview(settings, database, looking, SHARD),
        redis=looking,
        metrics=metrics,
        leader=leader,
        settings_watch=settings_watch,
    )
    try:
        async with asyncio.TaskGroup() as group:
            serving = [group.create_task(part.run()) for part in (watch, confirmations, batcher, settings_watch)]
            leading = group.create_task(leader.run(resign)) if settings.run_leader else None
            looked = Looked(state)
            serving.append(group.create_task(serve(settings, lambda: looked.missing, metrics, looked.refresh)))
            yield state
            # What was accepted is answered first, while the leader still confirms and names it.
            await batcher.drain()
            resign.set()
            if leading is not None:
                await leading
            for task in serving:
                task.cancel()
    except BaseException as error:
        lifecycle.fail(error)
        raise
    finally:
        for door in (deciding, loading, asking, looking):
            await door.close()
        await database.close()
        await leader_database.close()
