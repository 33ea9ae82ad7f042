"""A process is not ready while a server is set up dangerously, says how to mend it, and heals when it is mended."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
from aiormq import connect as amqp_connect
from structlog.testing import LogCapture

from inventory.audit import audit
from kernel import logs
from kernel.amqp_topology import LOG_QUEUE_ARGUMENTS, log_queue
from kernel.clock import SYSTEM_CLOCK
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from persist_worker.main import work
from stockgate import status_command
from stockgate.processes import Child, log_tail
from stockgate.servers import Servers
from tests.as_role import as_role
from tests.integration.http_world import HttpWorld, fresh_settings
from tests.integration.worker_world import WorkerWorld
from tests.log_builder import LogBuilder

CHECK_S = 0.3
LIMIT_S = 40.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def missing(http: httpx2.AsyncClient, port: int) -> dict[str, str] | None:
    """What a process says it lacks; None where nobody answers yet."""
    try:
        reply = await http.get(f"http://127.0.0.1:{port}/health/ready")
    except httpx2.TransportError:
        return None
    found: dict[str, str] = reply.json()["missing"]
    assert reply.status_code == (503 if found else 200)
    return found


async def until_missing(port: int, name: str | None) -> dict[str, str]:
    """Wait until a process names this check, or for None until it is ready; what it says then."""
    last: Any = None
    async with httpx2.AsyncClient(trust_env=False) as http:
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    last = await missing(http, port)
                    if last is not None and (name in last if name else not last):
                        return last
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"waited for {name or 'ready'}, last: {last}") from None


@asynccontextmanager
async def forgetful_mysql(servers: Servers) -> AsyncGenerator[None]:
    """A server that answers COMMIT before it is on disk."""
    await servers.mariadb.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    try:
        yield
    finally:
        await servers.mariadb.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


async def until_left_alone(world: WorkerWorld) -> None:
    """Wait until one message is ready in the queue and nobody consumes it."""
    connection = await amqp_connect(world.settings.amqp_url.get_secret_value())
    channel = await connection.channel()

    async def left_alone() -> bool:
        answer = await channel.queue_declare(log_queue(0), passive=True)
        return (answer.message_count, answer.consumer_count) == (1, 0)

    await world.until(left_alone, "the message is left alone")
    await connection.close()


async def test_a_worker_leaves_messages_in_the_queue_while_mysql_could_forget_them(
    servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said_to_log = LogCapture()
    monkeypatch.setattr(logs, "get_logger", lambda: structlog.wrap_logger(None, processors=[said_to_log]))
    port, stop, log = free_port(), asyncio.Event(), LogBuilder()
    log.adjust("a", 5)
    log.entry()
    async with WorkerWorld.open(servers, tmp_path, settings_check_s=CHECK_S, metrics_port=port) as world:
        await world.begin(log)
        async with asyncio.TaskGroup() as group:
            async with forgetful_mysql(servers):
                group.create_task(work(world.settings, stop))
                said = await until_missing(port, "mysql.flush_log_at_trx_commit")
                assert "SET GLOBAL innodb_flush_log_at_trx_commit = 1" in said["mysql.flush_log_at_trx_commit"]
                await world.publish(log.messages())
                await until_left_alone(world)
                assert (await world.row()).applied_m == 0
            await until_missing(port, None)
            await world.until_applied(log)
            # The same while it works.
            log.adjust("a", 5)
            log.entry()
            async with forgetful_mysql(servers):
                await until_missing(port, "mysql.flush_log_at_trx_commit")
                await world.publish(log.messages()[1:])
                await until_left_alone(world)
                assert (await world.row()).applied_m == 1
            await until_missing(port, None)
            await world.until_applied(log)
            stop.set()
        await world.check(log)
    told = [line["check"] for line in said_to_log.entries if line["event"] == "dangerous_setting"]
    assert told == 2 * ["mysql.flush_log_at_trx_commit"], "once for each time that it was wrong"


async def an_operator_sees_it(settings: Settings) -> None:
    """What the command line tells of this system under the operators' account; nobody compares stores here."""
    told = status_command.summary(await status_command.ask(settings), settings, SYSTEM_CLOCK.now_ms())
    assert told["troubles"] == ["the stores were never compared: does a reconciler run?"]
    shard = told["shards"][0]
    assert (told["gateways"], shard["mode"], shard["worker_attached"]) == (1, "hot", True)
    assert shard["leader"] == {"term": 1, "present": True, "here": False}
    database, redis = await Database.open(settings, name="test"), RedisDoor.open(settings, name="test")
    looked_at: dict[str, int] = {}
    checks = await audit(database, redis, 0, lambda check: looked_at.update({check.name: check.checked}))
    assert looked_at == {check.name: check.checked for check in checks}
    assert all(check.ok for check in checks)
    await redis.close()
    await database.close()


async def test_a_gateway_is_not_ready_and_still_answers_who_calls_it(servers: Servers, tmp_path: Path) -> None:
    async with HttpWorld.open(servers, tmp_path, settings_check_s=CHECK_S) as world:
        order_id = await world.reserved(await world.stocked(5), 1)
        await an_operator_sees_it(as_role(servers, world.settings, "operator"))
        admin = RedisDoor.open(world.settings, name="test")
        await admin.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            said = await until_missing(world.port, "redis.maxmemory_policy")
            assert "`CONFIG SET maxmemory-policy noeviction`" in said["redis.maxmemory_policy"]
            assert list(said) == ["redis.maxmemory_policy"]
            # What somebody holds can be paid for; what is promised now is in the queue as ever.
            confirmed = await world.call("POST", f"/v1/reservations/{order_id}/confirm", {})
            assert (confirmed.status_code, confirmed.headers["durability"]) == (200, "broker")
            shown = (await world.call("GET", "/metrics", caller="metrics")).text
            assert 'stockgate_dangerous_settings{store="redis"} 1.0' in shown
        finally:
            await admin.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        await until_missing(world.port, None)
        # A server that was started anew may be another one: it is looked at as soon as it is there.
        await servers.redis.stop()
        await until_missing(world.port, "redis")
        servers.redis.config["maxmemory-policy"] = "volatile-ttl"
        try:
            await servers.redis.start()
            await until_missing(world.port, "redis.maxmemory_policy")
            await admin.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        finally:
            servers.redis.config.clear()
        await until_missing(world.port, None)
        await admin.close()


async def test_a_leader_and_a_reconciler_refuse_too(servers: Servers, tmp_path: Path) -> None:
    """The leader for a queue that loses messages, the reconciler for tables that it cannot trust."""
    settings, _ = await fresh_settings(servers, tmp_path)
    connection = await amqp_connect(settings.amqp_url.get_secret_value())
    channel = await connection.channel()
    await channel.queue_declare(log_queue(0), durable=True, arguments={"x-queue-type": "classic"})
    database = settings.mysql_url.get_secret_value().rpartition("/")[2]
    column = f"ALTER TABLE {database}.inventory_order MODIFY buyer_id VARCHAR(64) CHARACTER SET {{}} NOT NULL"
    await servers.mariadb.execute(column.format("utf8mb4 COLLATE utf8mb4_general_ci"))
    async with (
        process(as_role(servers, settings, "leader"), tmp_path, "leader") as leader,
        process(as_role(servers, settings, "reconciler"), tmp_path, "reconciler") as reconciler,
    ):
        said = await until_missing(leader, "rabbitmq.queue")
        assert "rabbitmqctl delete_queue" in said["rabbitmq.queue"]
        said = await until_missing(reconciler, "mysql.id_collations")
        assert "inventory_order.buyer_id utf8mb4_general_ci" in said["mysql.id_collations"]
        await channel.queue_delete(log_queue(0))
        await servers.mariadb.execute(column.format("ascii COLLATE ascii_bin"))
        await until_missing(leader, None)
        await until_missing(reconciler, None)
    await channel.queue_declare(log_queue(0), durable=True, arguments=dict(LOG_QUEUE_ARGUMENTS))
    await connection.close()


@asynccontextmanager
async def process(settings: Settings, directory: Path, role: str) -> AsyncGenerator[int]:
    """A process of ours; where it serves `/health`."""
    port, child = free_port(), Child(role, directory / f"{role}.log")
    child.spawn(
        [sys.executable, "-m", "stockgate", role],
        env={
            **os.environ,
            "STOCKGATE_REDIS_URL": settings.redis_url.get_secret_value(),
            "STOCKGATE_MYSQL_URL": settings.mysql_url.get_secret_value(),
            "STOCKGATE_AMQP_URL": settings.amqp_url.get_secret_value(),
            "STOCKGATE_METRICS_PORT": str(port),
            "STOCKGATE_SETTINGS_CHECK_S": str(CHECK_S),
        },
    )
    try:
        yield port
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log_tail(child.log_path)}") from error
    finally:
        await child.kill()
