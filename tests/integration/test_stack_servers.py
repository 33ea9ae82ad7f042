"""The private servers, for real: killed and started again with their data, and two run directories side by side."""

import asyncio
import json
import signal
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from stockgate.accounts import ROLES
from stockgate.processes import Identity, StackError
from stockgate.servers import MariaDBServer, RabbitServer, RedisServer, Server, ServerError, Servers


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncGenerator[Servers]:
    servers = Servers(tmp_path / "run")
    await servers.start()
    try:
        yield servers
    finally:
        await servers.stop()


async def redis_says(server: RedisServer, *commands: str) -> list[str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(f"AUTH {server.owner} {server.passwords.get('redis')}\r\n".encode())
        answers: list[str] = [(await reader.readline()).decode().strip()]
        for command in commands:
            writer.write(f"{command}\r\n".encode())
            answers.append((await reader.readline()).decode().strip())
            if answers[-1].startswith("$") and answers[-1] != "$-1":
                answers[-1] = (await reader.readline()).decode().strip()
        return answers[1:]
    finally:
        writer.close()


async def kill_and_start(server: Server) -> None:
    port, pid = server.port, server.pid
    await server.kill(signal.SIGKILL)
    assert server.pid is None
    assert server.exit_code == -signal.SIGKILL
    await server.start()
    assert server.port == port
    assert server.pid not in {None, pid}


async def test_each_continues_with_its_data_after_sigkill(servers: Servers) -> None:
    await redis_says(servers.redis, "SET kept yes")
    await servers.mariadb.execute("CREATE TABLE stockgate.kept (a INT); INSERT INTO stockgate.kept VALUES (7)")
    queue = (
        'rabbit_amqqueue:declare({resource, <<"stockgate">>, queue, <<"kept">>}, true, false, [], none, <<"t">>), ok.'
    )
    assert (await servers.rabbitmq.ctl("eval", queue)).strip() == "ok"

    for server in servers:
        await kill_and_start(server)

    assert await redis_says(servers.redis, "GET kept") == ["yes"]
    assert (await servers.mariadb.execute("SELECT a FROM stockgate.kept")).strip() == "7"
    assert "kept" in await servers.rabbitmq.ctl("list_queues", "-p", "stockgate", "name")

    # A second owner of the same run directory finds ports, passwords and data.
    await servers.stop()
    again = Servers(servers.redis.run_dir)
    assert again.addresses() == servers.addresses()
    await again.start()
    try:
        assert await redis_says(again.redis, "GET kept") == ["yes"]
    finally:
        await again.stop()


async def test_settings_that_the_promises_rest_on(servers: Servers) -> None:
    assert await redis_says(servers.redis, "CONFIG GET appendonly") != []
    variables = dict(
        line.split("\t")
        for line in (await servers.mariadb.execute("SHOW GLOBAL VARIABLES")).splitlines()
        if line.count("\t") == 1
    )
    wanted = {
        "innodb_flush_log_at_trx_commit": "1",
        "tx_isolation": "READ-COMMITTED",
        "time_zone": "+00:00",
        "innodb_lock_wait_timeout": "5",
        "idle_transaction_timeout": "3",
        "skip_name_resolve": "ON",
        "bind_address": "127.0.0.1",
        "character_set_server": "utf8mb4",
    }
    assert {name: variables[name] for name in wanted} == wanted
    assert "STRICT_TRANS_TABLES" in variables["sql_mode"]
    users = (await servers.mariadb.execute("SELECT User FROM mysql.user WHERE User <> 'mariadb.sys'")).split()
    assert set(users) == {"admin", "stockgate", *(role.account for role in ROLES.values())}
    passwordless = "SELECT User FROM mysql.user WHERE authentication_string = '' AND User <> 'mariadb.sys'"
    assert await servers.mariadb.execute(passwordless) == ""
    queue_users = {line.split()[0] for line in (await servers.rabbitmq.ctl("list_users")).splitlines()[1:]}
    assert queue_users == {"stockgate", *(role.account for role in ROLES.values() if role.queue)}, "and no guest"
    plugins = await servers.rabbitmq.ctl("eval", "rabbit_plugins:active().")
    assert plugins.strip() == "[]", "no management page"


async def test_secrets_are_private_and_not_in_command_lines(servers: Servers) -> None:
    run_dir = servers.redis.run_dir
    for name in (
        "passwords.json",
        "redis/redis.conf",
        "mariadb/client.cnf",
        "mariadb/accounts.sql",
        "rabbitmq/rabbitmq.conf",
        "rabbitmq/definitions.json",
    ):
        assert stat.S_IMODE((run_dir / name).stat().st_mode) == 0o600, name
    secrets = set(json.loads((run_dir / "passwords.json").read_text()).values())
    assert len(secrets) > 10
    for server in servers:
        command_line = Path(f"/proc/{server.pid}/cmdline").read_text()
        assert not any(secret in command_line for secret in secrets)


async def test_two_run_directories_side_by_side(servers: Servers, tmp_path: Path) -> None:
    other = RedisServer(tmp_path / "other")
    await other.start()
    try:
        assert other.port != servers.redis.port
        assert other.url != servers.redis.url
        assert await redis_says(other, "GET kept") == ["$-1"]
    finally:
        await other.stop()
    assert servers.redis.alive()


async def test_redis_can_be_started_empty_and_with_other_durability(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path, appendfsync="always")
    await redis.start()
    await redis_says(redis, "SET a 1")
    await redis.stop()
    assert redis.append_only_files()
    redis.wipe()
    redis.appendonly = False
    redis.config["maxmemory"] = "3mb"
    await redis.start()
    assert await redis_says(redis, "GET a") == ["$-1"]
    await redis.stop()


async def test_a_server_that_cannot_start_tells_why(tmp_path: Path) -> None:
    redis = RedisServer(tmp_path, config={"no-such-setting": "1"})
    with pytest.raises(ServerError, match=r"(?s)redis ended with 1 while starting.*no-such-setting"):
        await redis.start()
    assert redis.pid is None


async def test_what_a_dead_owner_left_is_ended_before_its_data_is_used(tmp_path: Path) -> None:
    first = RedisServer(tmp_path)
    await first.start()
    left = Identity.of(first.pid or 0)
    assert left
    second = RedisServer(tmp_path)
    await second.start()
    try:
        assert not left.alive()
        with pytest.raises(StackError, match="running already"):
            await second.start()
        assert second.alive()
    finally:
        await second.stop()


async def test_starts_in_a_folder_too_deep_for_a_unix_socket(tmp_path: Path) -> None:
    mariadb = MariaDBServer(tmp_path / ("deep" * 20) / "run dir")
    await mariadb.start()
    assert (await mariadb.execute("SELECT 1")).strip() == "1"
    await mariadb.stop()


async def test_rabbitmq_leaves_no_port_mapper_behind(tmp_path: Path) -> None:
    rabbit = RabbitServer(tmp_path)
    await rabbit.start()
    port_mapper = rabbit.ports.get("rabbitmq")
    assert port_mapper != rabbit.port, "the port is taken while it runs, so another one would be chosen"
    mine = Path("/proc").glob("[0-9]*/cmdline")
    assert any(
        b"epmd" in path.read_bytes() and str(tmp_path) in str((path.parent / "cwd").readlink())
        for path in mine
        if path.exists()
    )
    await rabbit.stop()
    mine = Path("/proc").glob("[0-9]*/cwd")
    assert not [path for path in mine if path.exists() and str(tmp_path) in str(path.readlink())]
