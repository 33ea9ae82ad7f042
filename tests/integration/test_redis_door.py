"""The Redis door on a real server: every reply reaches its caller or nobody, and every failure says what is known."""

import asyncio
import random
import signal
import traceback
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from kernel import redis_door
from kernel.errors import ScriptFailed, StoreRefused, StoreUnavailable
from kernel.redis_door import RedisDoor, open_subscription, pack
from kernel.scripts import Script
from kernel.settings import Settings
from stockgate.servers import RedisServer, Servers
from tests.proxy import Proxy, proxy_to

ECHO = Script.of("echo", "#!lua\nreturn ARGV[1]")
COUNT = Script.of("count", "#!lua\nreturn redis.call('INCR', KEYS[1])")
FREE = Script.of("free", "#!lua flags=allow-oom\nreturn redis.call('INCR', KEYS[1])")
TWO_WRITES = Script.of("two", "redis.call('DEL', KEYS[2]) return redis.call('INCR', KEYS[1])")


def settings_for(url: str, timeout_ms: int = 1_000) -> Settings:
    return Settings(redis_url=SecretStr(url), redis_timeout_ms=timeout_ms)


@pytest.fixture
async def door(servers: Servers) -> AsyncGenerator[RedisDoor]:
    door = RedisDoor.open(settings_for(servers.redis.url), name="test")
    await door.command("FLUSHALL")
    yield door
    await door.close()


@pytest.fixture
async def proxy(servers: Servers) -> AsyncGenerator[Proxy]:
    async with proxy_to(servers.redis.url) as proxy:
        yield proxy


@pytest.fixture
async def fragile(servers: Servers, proxy: Proxy) -> AsyncGenerator[RedisDoor]:
    """A door through the proxy, with a time limit of 300 ms."""
    door = RedisDoor.open(settings_for(proxy.url(servers.redis.url), 300), name="fragile")
    yield door
    await door.close()


async def test_a_forgotten_script_is_loaded_and_run_once(door: RedisDoor) -> None:
    assert await door.run(COUNT, ["n"], []) == 1
    await door.command("SCRIPT", "FLUSH")
    assert await door.run(COUNT, ["n"], []) == 2
    assert door.generation == 1


async def test_scripts_that_are_forgotten_at_any_moment_run_all_the_same(servers: Servers, door: RedisDoor) -> None:
    """Redis may forget a script between any two commands, so a forgotten one is loaded and run with a single write."""
    other = RedisDoor.open(settings_for(servers.redis.url), name="forgetting")
    ran = asyncio.Event()

    async def forget() -> None:
        while not ran.is_set():
            await other.command("SCRIPT", "FLUSH")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(forget())
        try:
            assert [await door.run(COUNT, ["n"], []) for _ in range(1_000)] == list(range(1, 1_001))
        finally:
            ran.set()
    await other.close()


async def test_a_script_with_a_wrong_sha_is_never_run(door: RedisDoor) -> None:
    with pytest.raises(ScriptFailed, match="sha"):
        await door.run(Script("other", COUNT.source, "0" * 40), ["n"], [])
    assert await door.command("EXISTS", "n") == 0


def test_pack_writes_what_redis_reads() -> None:
    packed = pack(("EVALSHA", "ab", 2), ("k1", "ü"), (b"\r\n\0", "x", -5))
    assert packed == (
        b"*8\r\n$7\r\nEVALSHA\r\n$2\r\nab\r\n$1\r\n2\r\n$2\r\nk1\r\n$2\r\n\xc3\xbc\r\n$3\r\n\r\n\0\r\n$1\r\nx\r\n$2\r\n-5\r\n"
    )


async def test_big_calls_with_a_thousand_keys(door: RedisDoor) -> None:
    script = Script.of("big", "#!lua\nreturn {#KEYS, KEYS[1000], ARGV[1], #ARGV[2]}")
    keys = [f"{{sg:0}}:7:k:sku {n}@store-7" for n in range(1000)]
    blob = bytes(range(256)) * 2_000
    assert await door.run(script, keys, [blob, b"x" * 500_000]) == [1000, keys[999].encode(), blob, 500_000]


async def test_callers_at_once_get_their_own_replies_in_order(door: RedisDoor) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(door.command("RPUSH", "order", n)) for n in range(200)]
        echoes = [group.create_task(door.run(ECHO, [], [str(n)])) for n in range(200)]
    assert [task.result() for task in tasks] == list(range(1, 201))
    assert [task.result() for task in echoes] == [str(n).encode() for n in range(200)]
    assert await door.command("LRANGE", "order", 0, -1) == [str(n).encode() for n in range(200)]
    assert door.generation == 1


async def test_commands_of_one_write_have_their_replies_in_order(door: RedisDoor) -> None:
    batch = [
        *(("SET", f"k{number}", number) for number in range(300)),
        *(("GET", f"k{number}") for number in range(300)),
    ]
    assert await door.commands(batch) == [b"OK"] * 300 + [b"%d" % number for number in range(300)]
    with pytest.raises(ScriptFailed, match="WRONGTYPE"):
        await door.commands([("LPUSH", "k1", "x"), ("GET", "k2")])
    # All replies were read: the next call has its own, on the same connection.
    assert await door.command("GET", "k3") == b"3"
    assert door.generation == 1


async def test_a_cancelled_call_leaves_its_reply_to_nobody(door: RedisDoor) -> None:
    chance = random.Random(7)
    cancelled = 0
    for n in range(300):
        task = asyncio.create_task(door.run(ECHO, [], [f"lost-{n}"]))
        # Every other call is cancelled at one of its first steps, the rest about when its reply comes.
        for _ in range(n % 24 if n % 2 else 0):
            await asyncio.sleep(0)
        await asyncio.sleep(0 if n % 2 else chance.random() * 0.0006)
        task.cancel()
        try:
            assert await task == f"lost-{n}".encode()
        except asyncio.CancelledError:
            cancelled += 1
        assert await door.run(ECHO, [], [f"mine-{n}"]) == f"mine-{n}".encode()
    # How many of the others came in time is the machine's affair.
    assert cancelled


async def test_a_lost_reply_is_unknown_and_the_next_call_has_its_own(
    door: RedisDoor, fragile: RedisDoor, proxy: Proxy
) -> None:
    assert await fragile.run(COUNT, ["n"], []) == 1
    proxy.drop_replies()
    with pytest.raises(StoreUnavailable) as failure:
        await fragile.run(COUNT, ["n"], [])
    assert (failure.value.store, failure.value.outcome) == ("redis", "unknown")
    assert await door.command("GET", "n") == b"2"
    proxy.restore()
    assert await fragile.run(ECHO, [], ["mine"]) == b"mine"
    assert fragile.generation == 2


async def test_a_cut_connection_is_unknown_while_asking_and_unnoticed_between(fragile: RedisDoor, proxy: Proxy) -> None:
    await fragile.command("PING")
    proxy.blackhole()
    asking = asyncio.create_task(fragile.command("PING"))
    await asyncio.sleep(0.05)
    proxy.cut()
    with pytest.raises(StoreUnavailable) as failure:
        await asking
    assert failure.value.outcome == "unknown"

    proxy.restore()
    assert await fragile.command("PING") == b"PONG"
    proxy.cut()
    await asyncio.sleep(0.05)
    assert await fragile.command("PING") == b"PONG"
    assert fragile.generation == 3


async def test_nothing_sent_is_not_executed(fragile: RedisDoor, proxy: Proxy) -> None:
    await proxy.refuse()
    with pytest.raises(StoreUnavailable) as failure:
        await fragile.run(COUNT, ["n"], [])
    assert failure.value.outcome == "not_executed"
    await proxy.start()
    proxy.blackhole()
    with pytest.raises(StoreUnavailable) as failure:
        await fragile.run(COUNT, ["n"], [])
    assert failure.value.outcome == "not_executed"
    proxy.restore()
    assert await fragile.run(ECHO, [], ["x"]) == b"x"


async def test_who_waits_too_long_for_its_turn_was_not_executed(fragile: RedisDoor, proxy: Proxy) -> None:
    await fragile.command("PING")
    proxy.drop_replies()
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(_outcome(fragile)) for _ in range(3)]
    assert sorted(call.result() for call in calls) == ["not_executed", "not_executed", "unknown"]


async def _outcome(door: RedisDoor) -> str:
    try:
        await door.command("PING")
    except StoreUnavailable as failure:
        return failure.outcome
    return "done"


async def test_killed_in_the_middle_of_a_call_and_started_again(servers: Servers, door: RedisDoor) -> None:
    await door.run(COUNT, ["n"], [])
    await servers.redis.kill(signal.SIGSTOP)
    asking = asyncio.create_task(door.run(COUNT, ["n"], []))
    await asyncio.sleep(0.05)
    await servers.redis.kill(signal.SIGKILL)
    with pytest.raises(StoreUnavailable) as failure:
        await asking
    assert failure.value.outcome == "unknown"
    with pytest.raises(StoreUnavailable) as failure:
        await door.run(COUNT, ["n"], [])
    assert failure.value.outcome == "not_executed"
    await servers.redis.start()
    assert await door.run(ECHO, [], ["again"]) == b"again"
    assert door.generation == 2


async def test_full_memory_refuses_up_front_and_lets_settling_through(door: RedisDoor) -> None:
    await door.command("SET", "n", 1)
    await door.command("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(StoreRefused) as refusal:
            await door.run(COUNT, ["n"], [])
        assert (refusal.value.code, refusal.value.outcome) == ("OOM", "not_executed")
        assert await door.run(FREE, ["n"], []) == 2
        # Raised by a running script, which is no proof that nothing was done.
        with pytest.raises(ScriptFailed):
            await door.run(Script.of("raw", "return redis.call('INCR', KEYS[1])"), ["n"], [])
        with pytest.raises(StoreRefused):
            await door.command("SET", "other", 1)
    finally:
        await door.command("CONFIG", "SET", "maxmemory", "1gb")
    assert await door.run(TWO_WRITES, ["n", "other"], []) == 3


async def test_a_replica_refuses(door: RedisDoor) -> None:
    await door.command("REPLICAOF", "127.0.0.1", 1)
    try:
        with pytest.raises(StoreRefused) as refusal:
            await door.run(COUNT, ["n"], [])
        assert refusal.value.code == "READONLY"
    finally:
        await door.command("REPLICAOF", "NO", "ONE")
    assert await door.run(COUNT, ["n"], []) == 1


async def test_loading_and_busy_servers_refuse(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, config={"busy-reply-threshold": "50", "enable-debug-command": "yes"})
    await server.start()
    try:
        busy, other = (RedisDoor.open(settings_for(server.url, 30_000), name=name) for name in ("busy", "other"))
        spin = Script.of("spin", "#!lua\nlocal n = 0 while n < 3e7 do n = n + 1 end return n")
        spinning = asyncio.create_task(busy.run(spin, [], []))
        await asyncio.sleep(0.15)
        with pytest.raises(StoreRefused) as refusal:
            await other.command("SET", "a", "b")
        assert refusal.value.code == "BUSY"
        await spinning
        await busy.close()
        await other.close()
    finally:
        await server.stop()


async def test_a_wrong_password_is_refused_and_not_shown(servers: Servers) -> None:
    url = f"redis://:sesame-open@127.0.0.1:{urlsplit(servers.redis.url).port}/0"
    door = RedisDoor.open(settings_for(url), name="stranger")
    with pytest.raises(StoreRefused) as refusal:
        await door.command("PING")
    assert refusal.value.code == "WRONGPASS"
    assert "sesame" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize(
    "source",
    [
        "#!lua\nerror('broken')",
        "#!lua\nreturn redis.call('INCR', KEYS[1])",
        "#!lua\nlocal",
        "#!lua\nreturn redis.call('HGET', KEYS[1], 'f')",
    ],
)
async def test_a_script_that_raises_has_failed_and_the_door_goes_on(door: RedisDoor, source: str) -> None:
    await door.command("SET", "text", "no number")
    with pytest.raises(ScriptFailed):
        await door.run(Script.of("broken", source), ["text"], [])
    assert await door.run(ECHO, [], ["next"]) == b"next"
    assert door.generation == 1


async def test_read_stream_waits_and_gives_entries_in_order(servers: Servers, door: RedisDoor) -> None:
    reader = RedisDoor.open(settings_for(servers.redis.url, 300), name="reader")
    assert await reader.read_stream("log", 0, 10, 0) == []
    assert await reader.read_stream("log", 0, 10, 50) == []
    waiting = asyncio.create_task(reader.read_stream("log", 0, 10, 2_000))
    await asyncio.sleep(0.5)
    await door.command("XADD", "log", "1-0", "d", "aa", "e", b"\x93\0\xff", "b", 12)
    assert await waiting == [(1, {b"d": b"aa", b"e": b"\x93\0\xff", b"b": b"12"})]
    for m in range(2, 8):
        await door.command("XADD", "log", f"{m}-0", "d", "x")
    assert [m for m, _ in await reader.read_stream("log", 1, 4, 100)] == [2, 3, 4, 5]
    assert [m for m, _ in await reader.read_stream("log", 5, 4, 100)] == [6, 7]
    await door.command("XADD", "log", "9-3", "d", "foreign")
    with pytest.raises(ScriptFailed):
        await reader.read_stream("log", 7, 4, 0)
    await reader.close()


async def test_a_closed_door_stays_closed(door: RedisDoor) -> None:
    await door.close()
    with pytest.raises(StoreUnavailable) as failure:
        await door.command("PING")
    assert failure.value.outcome == "not_executed"


async def test_subscription_hears_everything_from_its_opening_on(servers: Servers, door: RedisDoor) -> None:
    bodies = [bytes([n]) * 3_000 for n in range(100)]
    async with open_subscription(settings_for(servers.redis.url), "{sg:0}:confirmed") as messages:
        for body in bodies:
            assert await door.command("PUBLISH", "{sg:0}:confirmed", body) == 1
        assert [await anext(messages) for _ in bodies] == bodies


async def test_subscription_is_not_lost_by_reads_that_are_given_up(
    servers: Servers, door: RedisDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_door, "SUBSCRIPTION_PING_S", 0.02)
    async with open_subscription(settings_for(servers.redis.url), "news") as messages:
        waiting = asyncio.ensure_future(anext(messages))  # noqa: TID251 - anext is no coroutine
        await asyncio.sleep(0.2)
        await door.command("PUBLISH", "news", b"after ten pings")
        assert await waiting == b"after ten pings"


async def test_subscription_ends_when_its_connection_does(servers: Servers, proxy: Proxy) -> None:
    async with open_subscription(settings_for(proxy.url(servers.redis.url)), "news") as messages:
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            await anext(messages)
        with pytest.raises(StoreUnavailable):
            await anext(messages)


async def test_subscription_notices_a_silent_peer(
    servers: Servers, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_door, "SUBSCRIPTION_PING_S", 0.1)
    async with open_subscription(settings_for(proxy.url(servers.redis.url), 200), "news") as messages:
        proxy.blackhole()
        async with asyncio.timeout(2):
            with pytest.raises(StoreUnavailable):
                await anext(messages)


async def test_subscribing_to_nobody_fails_at_once(servers: Servers, proxy: Proxy) -> None:
    await proxy.refuse()
    with pytest.raises(StoreUnavailable) as failure:
        async with open_subscription(settings_for(proxy.url(servers.redis.url)), "news"):
            pass
    assert failure.value.outcome == "not_executed"
