"""What the doors and the gateway show of their stores: failures by code, connections, pools, the server's own words."""

import asyncio
import socket
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway import main
from kernel.amqp_door import Publisher
from kernel.errors import ScriptFailed, StoreUnavailable
from kernel.metrics import Metrics
from kernel.mysql_door import Database, Statement
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from stockgate.servers import Servers
from tests.integration.http_world import HttpWorld, fresh_settings
from tests.integration.test_health import get
from tests.proxy import proxy_to


def failures(metrics: Metrics, store: str) -> dict[str, float]:
    """Failures so far by code, those that there were."""
    samples = [sample for family in metrics.store_errors_total.collect() for sample in family.samples]
    return {
        sample.labels["code"]: sample.value
        for sample in samples
        if sample.name.endswith("_total") and sample.labels["store"] == store and sample.value
    }


def connections(metrics: Metrics, store: str) -> float | None:
    return metrics.registry.get_sample_value("stockgate_store_connections_total", {"store": store})


async def test_redis_is_counted_by_what_it_answered(servers: Servers) -> None:
    metrics = Metrics()
    async with proxy_to(servers.redis.url) as proxy:
        settings = Settings(redis_url=SecretStr(proxy.url(servers.redis.url)), redis_timeout_ms=300)
        door = RedisDoor.open(settings, name="counted", metrics=metrics)
        assert failures(metrics, "redis") == {}
        assert metrics.registry.get_sample_value("stockgate_store_errors_total", {"store": "redis", "code": "OOM"}) == 0
        with pytest.raises(ScriptFailed):
            await door.command("NO-SUCH-COMMAND")
        proxy.drop_replies()
        with pytest.raises(StoreUnavailable):
            await door.command("PING")
        assert failures(metrics, "redis") == {"SCRIPT_FAILED": 1, "UNKNOWN": 1}
        proxy.restore()
        await door.command("PING")
        assert connections(metrics, "redis") == 2
        await door.close()


async def test_mysql_is_counted_with_its_pool(servers: Servers) -> None:
    metrics = Metrics()
    settings = Settings(mysql_url=SecretStr(servers.mariadb.url))
    database = await Database.open(settings, name="counted", pool_max=3, metrics=metrics)

    def sessions(what: str) -> float | None:
        return metrics.registry.get_sample_value(f"stockgate_mysql_sessions_{what}", {"pool": "counted"})

    async with database.transaction():
        assert (sessions("in_use"), sessions("max")) == (1, 3)
    assert (sessions("in_use"), connections(metrics, "mysql")) == (0, 1)
    with pytest.raises(ZeroDivisionError):
        async with database.transaction():
            raise ZeroDivisionError
    # What another store says within a transaction is not MySQL's failure.
    with pytest.raises(StoreUnavailable):
        async with database.transaction():
            raise StoreUnavailable("redis", "unknown")
    assert failures(metrics, "mysql") == {}
    with pytest.raises(Exception, match="1146"):
        await database.fetch_all(Statement("SELECT 1 FROM no_such_table"))
    assert failures(metrics, "mysql") == {"STATEMENT_FAILED": 1}
    await database.close()


async def test_rabbitmq_is_counted_when_it_is_away_and_when_it_hangs_up(servers: Servers) -> None:
    metrics = Metrics()
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"amqp://127.0.0.1:{free.getsockname()[1]}/x"
    with pytest.raises(StoreUnavailable):
        await Publisher.connect(Settings(amqp_url=SecretStr(nobody)), name="counted", metrics=metrics)
    assert failures(metrics, "rabbitmq") == {"NOT_EXECUTED": 1}
    async with proxy_to(servers.rabbitmq.url) as proxy:
        settings = Settings(amqp_url=SecretStr(proxy.url(servers.rabbitmq.url)))
        wanted = await Publisher.connect(settings, name="counted", metrics=metrics)
        lost = await Publisher.connect(settings, name="counted", metrics=metrics)
        wanted.abandon()
        proxy.cut()
        await lost.closed
        await lost.close()
    assert connections(metrics, "rabbitmq") == 2
    assert failures(metrics, "rabbitmq") == {"NOT_EXECUTED": 1, "CONNECTION_LOST": 1}


async def test_a_gateway_answers_for_itself_on_its_own_port(servers: Servers, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with HttpWorld.open(servers, tmp_path, metrics_port=port) as world:
        await world.stocked(3)
        key = world.keys["metrics"]
        status, _, body = await get(port, "/metrics", key=key)
        text = body.decode()
        assert status == 200
        assert 'stockgate_process_info{role="gateway"' in text
        assert "stockgate_ready 1.0" in text
        assert 'stockgate_shard_hot{shard="0"} 1.0' in text
        assert 'stockgate_redis_persistence_ok{shard="0"} 1.0' in text
        assert 'stockgate_http_requests_total{route="/v1/inventory",status="201"}' in text
        assert (await get(port, "/health/ready"))[0] == 200
        # Only health and metrics: whoever may reach this port reaches no order.
        assert (await get(port, "/v1/inventory/x", key=key))[0] == 404
        await servers.redis.kill()
        try:
            body = (await get(port, "/metrics", key=key))[2]
            assert b'stockgate_missing{dependency="redis"} 1.0' in body
            assert b"stockgate_log_head_m{" not in body
        finally:
            await servers.redis.start()


async def test_a_gateway_whose_metrics_port_is_taken_ends(servers: Servers, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings, _ = await fresh_settings(servers, tmp_path, run_leader=False, metrics_port=port)
        listener = socket.create_server(("127.0.0.1", 0))
        async with asyncio.timeout(20):
            assert await main.serve(settings, listener, asyncio.Event()) == 1
