"""The doctor on real servers that are set up wrongly on purpose."""

import json
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiormq import connect as amqp_connect
from pydantic import SecretStr

from inventory.doctor_mysql import check_mysql
from inventory.doctor_rabbitmq import check_rabbitmq
from inventory.doctor_redis import check_redis
from kernel.amqp_door import Publisher
from kernel.amqp_topology import LOG_QUEUE_ARGUMENTS, log_queue
from kernel.clock import Clock
from kernel.doctor import Finding, Status
from kernel.mysql_door import Database
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from sql.grant import grant
from sql.migrate import migrate
from stockgate import doctor_command
from stockgate.accounts import REDIS_RULE, ROLES, RoleName, with_login
from stockgate.servers import RedisServer, Server, Servers

QUEUE = log_queue(0)


def wrong(findings: list[Finding]) -> dict[str, str]:
    """What is not well: names, and what was found."""
    return {finding.name: finding.found for finding in findings if finding.status is not Status.OK}


def logged_in(server: Server, role: RoleName, url: str) -> str:
    """The address for the account of one kind of process."""
    login = server.login(role)
    assert login is not None
    return with_login(url, *login)


@asynccontextmanager
async def opened_redis(url: str) -> AsyncGenerator[RedisDoor]:
    door = RedisDoor.open(Settings(redis_url=SecretStr(url)), name="test")
    try:
        yield door
    finally:
        await door.close()


async def check(url: str) -> list[Finding]:
    """What a process with this login finds at a Redis."""
    settings = Settings(redis_url=SecretStr(url))
    async with opened_redis(url) as door:
        return await check_redis(door, settings)


# --- Redis ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncGenerator[RedisServer]:
    """A Redis of the test's own."""
    server = RedisServer(tmp_path)
    await server.start()
    yield server
    await server.stop()


def application(redis: RedisServer) -> str:
    """The login of our processes, which is all that their check has."""
    return logged_in(redis, "gateway", redis.url)


async def test_a_redis_set_wrong_and_mended_by_the_words_of_the_finding(redis: RedisServer) -> None:
    assert wrong(await check(application(redis))) == {}
    bad = {"maxmemory-policy": "allkeys-lru", "appendfsync": "no", "no-appendfsync-on-rewrite": "yes"}
    async with opened_redis(redis.url) as admin:
        for name, value in bad.items():
            await admin.command("CONFIG", "SET", name, value)
        found = {finding.name: finding for finding in await check(application(redis)) if finding.mend}
        assert {name: finding.found for name, finding in found.items()} == {
            "redis.maxmemory_policy": "allkeys-lru",
            "redis.appendfsync": "no",
            "redis.no_appendfsync_on_rewrite": "yes",
        }
        for finding in found.values():
            command = finding.mend.split("`")[1]
            await admin.command(*command.split())
        assert wrong(await check(application(redis))) == {}
        await admin.command("CONFIG", "SET", "appendonly", "no")
        assert wrong(await check(application(redis))) == {"redis.appendonly": "no"}
        await admin.command("REPLICAOF", "127.0.0.1", "1")
        assert wrong(await check(application(redis))) == {"redis.appendonly": "no", "redis.role": "slave"}
        await admin.command("REPLICAOF", "NO", "ONE")


async def test_a_default_user_that_may_not_write_costs_what_scripts_wrote(tmp_path: Path) -> None:
    """The doctor warns of it, and it is true: such a Redis forgets when it reads its file."""
    server = RedisServer(tmp_path, config={"enable-debug-command": "local"})
    await server.start()
    try:
        for rule, found, kept in (
            ("off ~* &* +@all", [], b"2"),
            ("off", ["redis.default_user"], None),
        ):
            async with opened_redis(server.url) as admin:
                await admin.command("ACL", "SETUSER", "default", "reset", *rule.split())
                assert list(wrong(await check(application(server)))) == found
                script = "redis.call('SET', KEYS[1], '1') redis.call('SET', KEYS[2], '2')"
                await admin.command("EVAL", script, 2, "{sg:0}:a", "{sg:0}:b")
                await admin.command("DEBUG", "LOADAOF")
                assert await admin.command("GET", "{sg:0}:b") == kept
    finally:
        await server.stop()


async def test_an_account_that_may_not_ask_is_told_which_right_it_lacks(redis: RedisServer) -> None:
    rights = [word for word in REDIS_RULE if word not in {"+info", "+config|get", "+acl|dryrun", "+script|exists"}]
    async with opened_redis(redis.url) as admin:
        await admin.command("ACL", "SETUSER", "poor", "on", ">poor", *rights)
        url = with_login(redis.url, "poor", "poor")
        findings = await check(url)
        unknown = {finding.name: finding.mend for finding in findings if finding.status is Status.UNKNOWN}
        assert {name: mend.split("+", 1)[1].split("`")[0].split()[0] for name, mend in unknown.items()} == {
            "redis.version": "info",
            "redis.role": "info",
            "redis.run_id": "info",
            "redis.maxmemory_policy": "info",
            "redis.appendonly": "info",
            "redis.appendfsync": "config|get",
            "redis.no_appendfsync_on_rewrite": "config|get",
            "redis.default_user": "acl|dryrun",
            "redis.scripts": "script|load",
        }
        assert not any(finding.dangerous for finding in findings)
        # Half of it: what INFO says needs no CONFIG.
        await admin.command("ACL", "SETUSER", "poor", "+info", "+script|exists", "+acl|dryrun")
        assert set(wrong(await check(url))) == {
            "redis.appendfsync",
            "redis.no_appendfsync_on_rewrite",
        }


async def test_clocks_apart_are_dangerous(redis: RedisServer) -> None:
    class Ahead(Clock):
        def now_ms(self) -> int:
            return super().now_ms() + 6_000

    async with opened_redis(application(redis)) as door:
        findings = await check_redis(door, Settings(redis_url=SecretStr(redis.url)), Ahead())
    (clock,) = [finding for finding in findings if finding.dangerous]
    assert clock.name == "clock.redis"
    assert -6_000 <= int(clock.found.removesuffix(" ms")) < -5_000


# --- MySQL ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def migrated(servers: Servers) -> AsyncGenerator[tuple[Settings, Settings]]:
    """A fresh database with rights: settings of its owner, and of a gateway."""
    name = f"stockgate_{secrets.token_hex(4)}"
    await servers.mariadb.execute(f"CREATE DATABASE {name}")

    url = f"{servers.mariadb.url.rpartition('/')[0]}/{name}"
    owner = Settings(mysql_url=SecretStr(url))
    try:
        await migrate(owner)
        await grant(owner)
        yield owner, Settings(mysql_url=SecretStr(logged_in(servers.mariadb, "gateway", url)))
    finally:
        await servers.mariadb.execute(f"DROP DATABASE {name}")


async def check_database(settings: Settings) -> list[Finding]:
    database = await Database.open(settings, name="test")
    try:
        return await check_mysql(database)
    finally:
        await database.close()


async def test_a_mariadb_set_wrong_and_mended_by_the_words_of_the_finding(servers: Servers) -> None:
    bad = {"innodb_flush_log_at_trx_commit": "2", "max_allowed_packet": "1048576", "read_only": "ON"}
    async with migrated(servers) as (_, gateway):
        before = {name: (await servers.mariadb.execute(f"SELECT @@GLOBAL.{name}")).strip() for name in bad}
        assert wrong(await check_database(gateway)) == {}
        try:
            for name, value in bad.items():
                await servers.mariadb.execute(f"SET GLOBAL {name} = {value}")
            found = {finding.name: finding for finding in await check_database(gateway) if finding.mend}
            assert {name: finding.found for name, finding in found.items()} == {
                "mysql.flush_log_at_trx_commit": "2",
                "mysql.max_allowed_packet": "1048576",
                "mysql.read_only": "ON",
            }
            for finding in found.values():
                command = next(part for part in finding.mend.split("`") if part.startswith("SET GLOBAL"))
                await servers.mariadb.execute(command)
            assert wrong(await check_database(gateway)) == {}
        finally:
            for name, value in before.items():
                await servers.mariadb.execute(f"SET GLOBAL {name} = {value}")
        patient = gateway.model_copy(update={"mysql_timeout_ms": 30_000})
        assert wrong(await check_database(patient)) == {"mysql.lock_wait_timeout": "29 s"}


async def test_tables_that_are_not_what_this_version_has(servers: Servers) -> None:
    async with migrated(servers) as (owner, gateway):
        name = owner.mysql_url.get_secret_value().rpartition("/")[2]
        await servers.mariadb.execute(
            f"ALTER TABLE {name}.inventory_order MODIFY order_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
            f" NOT NULL; DELETE FROM {name}.schema_migration WHERE number > 1;"
            f"UPDATE {name}.schema_migration SET finished_ms = 0;"
            f"INSERT INTO {name}.schema_migration (number, name, checksum, statements_done, finished_ms)"
            " VALUES (9999, '9999_future.sql', 'f', 1, 1)"
        )
        found = wrong(await check_database(gateway))
        assert set(found) == {"mysql.migrations", "mysql.migrations_newer", "mysql.id_collations"}
        assert found["mysql.id_collations"] == "inventory_order.order_id utf8mb4_general_ci"
        assert found["mysql.migrations"].startswith("0001_inventory.sql is half done, 0002_")
        assert found["mysql.migrations_newer"] == "9999_future.sql"
        await servers.mariadb.execute(f"DROP TABLE {name}.schema_migration")
        assert "0001_inventory.sql is missing" in wrong(await check_database(owner))["mysql.migrations"]


# --- RabbitMQ ---------------------------------------------------------------------------------------------------------


async def test_a_queue_that_is_missing_right_wrong_or_not_to_be_asked_about(servers: Servers) -> None:
    vhost = f"doctor{secrets.token_hex(3)}"
    await servers.rabbitmq.add_vhost(vhost)

    url = f"{servers.rabbitmq.url.rpartition('/')[0]}/{vhost}"

    def settings(role: RoleName) -> Settings:
        return Settings(amqp_url=SecretStr(logged_in(servers.rabbitmq, role, url)))

    operator = settings("operator")
    connection = await amqp_connect(url)
    channel = await connection.channel()
    try:
        assert wrong(await check_rabbitmq(operator, name="test")) == {"rabbitmq.queue": f"{QUEUE} is not there yet"}
        bad: list[tuple[bool, dict[str, Any], str]] = [
            (True, {"x-queue-type": "classic"}, "x-overflow"),
            (True, {**LOG_QUEUE_ARGUMENTS, "x-delivery-limit": 20}, "x-delivery-limit"),
            (False, {}, "durable"),
        ]
        for durable, arguments, word in bad:
            await channel.queue_declare(QUEUE, durable=durable, arguments=arguments)
            (queue,) = [finding for finding in await check_rabbitmq(operator, name="test") if finding.mend]
            assert (queue.name, queue.dangerous) == ("rabbitmq.queue", True)
            assert f"'{word}'" in queue.found
            await channel.queue_delete(QUEUE)
        await channel.queue_declare(QUEUE, durable=True, arguments=dict(LOG_QUEUE_ARGUMENTS))
        for role, about in ROLES.items():
            if about.queue is not None:
                assert wrong(await check_rabbitmq(settings(role), name="test")) == {}, role
        await servers.rabbitmq.ctl("set_permissions", "-p", vhost, "stockgate_operator", "^$", "^$", "^$")
        (queue,) = [finding for finding in await check_rabbitmq(operator, name="test") if finding.mend]
        assert (queue.status, queue.dangerous) == (Status.UNKNOWN, False)
        assert "set_permissions" in queue.mend
    finally:
        await connection.close()


async def test_whether_anybody_leads_can_be_asked_without_taking_the_lock(servers: Servers) -> None:
    lock, settings = f"sg.{secrets.token_hex(3)}.leader", Settings(amqp_url=SecretStr(servers.rabbitmq.url))
    one, other = [await Publisher.connect(settings, name="test") for _ in range(2)]
    try:
        assert not await other.lock_taken(lock)
        assert await one.lock(lock)
        assert await other.lock_taken(lock)
        assert not await one.lock_taken(lock), "who holds it is asked about others"
        await one.close()
        assert await other.lock(lock), "the question has taken nothing"
    finally:
        for publisher in (one, other):
            await publisher.close()


# --- the command ------------------------------------------------------------------------------------------------------


def test_a_server_that_is_away_is_named_and_the_others_are_checked(
    servers: Servers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(
        redis_url=SecretStr("redis://someone:secret-word@127.0.0.1:1/0"),
        mysql_url=SecretStr(servers.mariadb.url),
        amqp_url=SecretStr(servers.rabbitmq.url),
    )
    assert doctor_command.run(settings, run_dir=tmp_path, as_json=True) == 1
    said = capsys.readouterr().out
    result = json.loads(said.splitlines()[-1])
    checks = {one["name"]: one for one in result["checks"]}
    assert (result["ok"], result["servers"]["redis"]) == (False, "redis://127.0.0.1:1/0")
    assert checks["redis.answers"]["status"] == "wrong"
    assert "STOCKGATE_REDIS_URL" in checks["redis.answers"]["mend"]
    assert not any(name.startswith("redis.") for name in checks if name != "redis.answers")
    assert checks["mysql.flush_log_at_trx_commit"]["status"] == checks["rabbitmq.version"]["status"] == "ok"
    # This database was never migrated.
    assert checks["mysql.migrations"]["status"] == "wrong"
    assert doctor_command.run(settings, run_dir=tmp_path, as_json=False) == 1
    shown = capsys.readouterr().out
    assert "DANGEROUS redis.answers" in shown
    assert "mend: `stockgate migrate`" in shown
    for password in ("secret-word", servers.mariadb.passwords.get("mariadb")):
        assert password not in said + shown


async def test_well_set_up_servers_are_well(servers: Servers) -> None:
    async with migrated(servers) as (_, gateway):
        urls = servers.role_addresses("gateway")
        settings = gateway.model_copy(
            update={"redis_url": SecretStr(urls["redis"]), "amqp_url": SecretStr(servers.rabbitmq.url)}
        )
        connection = await amqp_connect(servers.rabbitmq.url)
        channel = await connection.channel()
        await channel.queue_delete(QUEUE)
        await channel.queue_declare(QUEUE, durable=True, arguments=dict(LOG_QUEUE_ARGUMENTS))
        await connection.close()
        findings = await doctor_command.examine(settings)
        flat = [finding for found in findings.values() for finding in found]
        assert wrong(flat) == {}
        result = doctor_command.summary({}, flat)
        assert (result["ok"], result["dangerous"], len(result["checks"])) == (True, 0, len(flat))
