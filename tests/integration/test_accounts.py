"""The accounts of our processes at Redis and RabbitMQ: what the code says is allowed, and nothing else is."""

import ast
import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from aio_pika import Message
from aio_pika import connect as amqp_connect
from aio_pika.abc import AbstractIncomingMessage
from aiormq.exceptions import AMQPError, ChannelAccessRefused
from redis.exceptions import NoPermissionError

from kernel.amqp_topology import LOG_QUEUE_ARGUMENTS, leader_lock, log_queue
from stockgate.accounts import REDIS_COMMANDS, ROLES, RoleName
from stockgate.grants_command import grants_text
from stockgate.servers import Servers

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("kernel", "inventory", "gateway", "persist_worker", "reconciler", "stockgate")
CONTAINERS = {"ACL", "CLIENT", "CONFIG", "PUBSUB", "SCRIPT"}
"""Commands whose second word says what they do."""

DRIVERS = {"auth", "client|setname", "select"}
"""What the driver says by itself when it connects."""


def said_in_scripts() -> Iterator[str]:
    for path in (ROOT / "lua").glob("*.lua"):
        yield from (word.lower() for word in re.findall(r"(?:redis\.p?call|\bsend)\(\s*'([A-Z]+)'", path.read_text()))


def said_in_python() -> Iterator[str]:
    """The first words of `door.command("…")` and `pack(("…",))`."""
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            words: list[ast.expr] = []
            if isinstance(node.func, ast.Attribute) and node.func.attr == "command":
                words = node.args
            elif isinstance(node.func, ast.Name) and node.func.id == "pack" and isinstance(node.args[0], ast.Tuple):
                words = node.args[0].elts
            told = [word.value for word in words[:2] if isinstance(word, ast.Constant)]
            if told and isinstance(told[0], str) and told[0].isupper():
                yield (f"{told[0]}|{told[1]}" if told[0] in CONTAINERS else told[0]).lower()


def test_redis_allows_what_the_code_says_and_nothing_else() -> None:
    assert set(REDIS_COMMANDS) == {*said_in_scripts(), *said_in_python()} | DRIVERS


@pytest.fixture
async def application(servers: Servers) -> AsyncGenerator[Any]:
    """Redis under the account of our processes."""
    async with redis.asyncio.Redis.from_url(servers.role_addresses("gateway")["redis"]) as client:
        yield client


REFUSED_COMMANDS = [
    "FLUSHALL",
    "FLUSHDB",
    "CONFIG SET maxmemory 1",
    "CONFIG REWRITE",
    "KEYS *",
    "EVAL return(1) 0",
    "EVAL_RO return(1) 0",
    "FCALL f 0",
    "FUNCTION LIST",
    "SCRIPT FLUSH",
    "SHUTDOWN NOSAVE",
    "SAVE",
    "ACL WHOAMI",
    "ACL LIST",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal",
    "MONITOR",
    "SLOWLOG GET",
    "REPLICAOF NO ONE",
    "MIGRATE 127.0.0.1 1 k 0 1",
    "DEL {sg:0}:1:head",
    "RENAME {sg:0}:1:head {sg:0}:2:head",
    "SWAPDB 0 1",
    # Foreign names.
    "HGET other field",
    "HGET sg:0:1:head field",
    "HGETALL {other:0}:1:head",
    "UNLINK session:1",
    "XREAD STREAMS other 0",
    "SUBSCRIBE news",
]


@pytest.mark.parametrize("command", REFUSED_COMMANDS)
async def test_redis_refuses_everything_else(application: Any, command: str) -> None:
    with pytest.raises(NoPermissionError):
        await application.execute_command(*command.split(" "))


@pytest.mark.parametrize(
    "source",
    [
        "#!lua\nreturn redis.call('FLUSHALL')",
        "#!lua\nreturn redis.call('SET', 'foreign', '1')",
        "#!lua\nreturn redis.call('PUBLISH', 'news', 'x')",
        "#!lua\nreturn redis.call('CONFIG', 'SET', 'maxmemory', '1')",
    ],
)
async def test_a_script_may_no_more_than_its_caller(application: Any, source: str) -> None:
    sha = await application.script_load(source)
    with pytest.raises(redis.ResponseError, match=r"The user executing the script can't|is not allowed from script"):
        await application.evalsha(sha, 0)


async def test_debug_is_refused_even_where_a_server_has_it(servers: Servers) -> None:
    async with redis.asyncio.Redis.from_url(servers.redis.url) as owner:
        said = await owner.execute_command("ACL", "DRYRUN", "stockgate", "DEBUG", "SLEEP", "0")
    assert b"no permissions to run the 'debug" in (said or b"")


async def test_nobody_comes_in_without_an_account(servers: Servers) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", servers.redis.port)
    writer.write(b"PING\r\nAUTH sesame\r\n")
    said = [await reader.readline(), await reader.readline()]
    writer.close()
    assert [line.split()[0] for line in said] == [b"-NOAUTH", b"-WRONGPASS"]


async def test_the_configuration_shows_no_password(servers: Servers, application: Any) -> None:
    shown = str(await application.config_get("*")) + str(await application.info("all"))
    assert servers.redis.passwords.get("redis") not in shown
    assert servers.redis.passwords.get("redis-stockgate") not in shown


# --- RabbitMQ ---------------------------------------------------------------------------------------------------------


async def ignore(_message: AbstractIncomingMessage) -> None:
    """Messages are not what is tested."""


async def allowed(servers: Servers, role: RoleName, act: str) -> bool:
    """Whether a kind of process may do this in the virtual host."""
    connection = await amqp_connect(servers.role_addresses(role)["amqp"])
    async with connection:
        channel = await connection.channel()
        try:
            match act:
                case "declare the log":
                    await channel.declare_queue(log_queue(0), durable=True, arguments=dict(LOG_QUEUE_ARGUMENTS))
                case "take the lock":
                    await channel.declare_queue(leader_lock(7), exclusive=True)
                case "publish":
                    await channel.default_exchange.publish(Message(b"x"), leader_lock(9), mandatory=False)
                case "consume":
                    queue = await channel.declare_queue(log_queue(0), passive=True)
                    await queue.consume(ignore)
                case "look":
                    await channel.declare_queue(log_queue(0), passive=True)
                case "declare another":
                    await channel.declare_queue("mine")
                case "declare an exchange":
                    await channel.declare_exchange("mine")
                case "bind":
                    queue = await channel.declare_queue(log_queue(0), passive=True)
                    await queue.bind("amq.fanout")
                case _:
                    raise AssertionError(act)
        except ChannelAccessRefused:
            return False
    return True


LEADS = {"declare the log", "take the lock", "publish", "look"}
MAY: dict[RoleName, set[str]] = {
    "gateway": LEADS,
    "leader": LEADS,
    "persist-worker": {"declare the log", "consume", "look"},
    "operator": {"declare the log", "look"},
}
ACTS = sorted(LEADS | {"consume", "declare another", "declare an exchange", "bind"})


async def test_rabbitmq_allows_each_kind_of_process_what_it_does(servers: Servers) -> None:
    owner = await amqp_connect(servers.rabbitmq.url)
    async with owner:
        channel = await owner.channel()
        await channel.declare_queue(log_queue(0), durable=True, arguments=dict(LOG_QUEUE_ARGUMENTS))
    found = {role: {act for act in ACTS if await allowed(servers, role, act)} for role in MAY}
    assert found == MAY


async def test_rabbitmq_lets_nobody_else_in(servers: Servers) -> None:
    assert {role.name for role in ROLES.values() if role.queue} == MAY.keys()
    for login in ("guest:guest", "stockgate_reconciler:x"):
        with pytest.raises(AMQPError):
            await amqp_connect(f"amqp://{login}@127.0.0.1:{servers.rabbitmq.port}/stockgate")


# --- for operators ----------------------------------------------------------------------------------------------------


def test_the_rights_are_printed_in_each_servers_own_words() -> None:
    assert "GRANT INSERT, SELECT ON inventory_ledger TO 'stockgate_persist_worker';\n" in grants_text("mysql")
    assert grants_text("redis").startswith("ACL SETUSER stockgate reset on >… resetkeys ~{sg:*}:* ")
    assert "rabbitmqctl set_permissions -p stockgate stockgate_persist_worker '^sg" in grants_text("rabbitmq")


async def test_what_is_printed_for_redis_is_an_account(servers: Servers) -> None:
    words = grants_text("redis").split()
    assert words[:2] == ["ACL", "SETUSER"]
    async with redis.asyncio.Redis.from_url(servers.redis.url) as owner:
        await owner.execute_command("ACL", "SETUSER", "printed", *words[3:])
        try:
            printed, ours = await owner.acl_getuser("printed"), await owner.acl_getuser("stockgate")
            assert printed
            assert ours
            assert printed["commands"] == ours["commands"]
            assert (printed["keys"], printed["channels"]) == (ours["keys"], ours["channels"])
        finally:
            await owner.acl_deluser("printed")
