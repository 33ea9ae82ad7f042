"""Waiting for entries to be named: heard, missed, forked, late, and by thousands."""

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest

from inventory.confirmations import Confirmations
from inventory.events import Naming, encode_naming
from kernel import redis_keys
from stockgate.servers import Servers
from tests.integration.hot_world import Gateway, World, reserve


@pytest.fixture
async def world(servers: Servers) -> AsyncGenerator[World]:
    async with World.open(servers) as world:
        await world.stock("k1", available=10_000)
        yield world


async def entry(gateway: Gateway, order: str) -> tuple[int, int, str]:
    """Make an entry; its epoch, number and digest."""
    decided = await gateway.path.decide([reserve(order)])
    return decided.epoch, decided.m, decided.digest


def soon(seconds: float = 3.0) -> float:
    return time.monotonic() + seconds


async def say(world: World, naming: Naming) -> int:
    return await world.redis.command("PUBLISH", redis_keys.confirmed_channel(0), encode_naming(naming))


async def test_an_entry_is_waited_for_until_it_is_named(world: World) -> None:
    async with world.gateway() as gateway:
        wanted = await entry(gateway, "a")
        waiting = asyncio.create_task(gateway.confirmations.wait(*wanted, soon()))
        await asyncio.sleep(0.25)
        assert not waiting.done()
        await world.name()
        assert await waiting
        assert gateway.confirmations.missed == 0
        # A naming that came before anybody asked is remembered.
        assert await gateway.confirmations.wait(*wanted, soon(0))
        assert gateway.confirmations.waiting == 0


async def test_another_digest_is_not_the_entry(world: World) -> None:
    async with world.gateway() as gateway:
        epoch, m, _ = await entry(gateway, "a")
        waiting = asyncio.create_task(gateway.confirmations.wait(epoch, m, "0" * 40, soon()))
        await asyncio.sleep(0)
        await world.name()
        assert await waiting is False
        assert await gateway.confirmations.wait(epoch, m, "1" * 40, soon()) is False


async def test_a_higher_number_alone_proves_nothing(world: World) -> None:
    async with world.gateway() as gateway:
        forked, fine = await entry(gateway, "a"), await entry(gateway, "b")
        waiting = [
            asyncio.create_task(gateway.confirmations.wait(forked[0], forked[1], "0" * 40, soon())),
            asyncio.create_task(gateway.confirmations.wait(*forked, soon())),
        ]
        await asyncio.sleep(0)
        # Only the second entry is heard of; the first is asked for.
        await world.name(said=False)
        await say(world, Naming(fine[0], [(fine[1], fine[2])]))
        assert await asyncio.gather(*waiting) == [False, True]
        assert gateway.confirmations.missed == 2


async def test_a_naming_that_nobody_heard_is_asked_for(world: World) -> None:
    async with world.gateway() as gateway:
        wanted = [await entry(gateway, f"o{number}") for number in range(20)]
        waiting = [asyncio.create_task(gateway.confirmations.wait(*one, soon())) for one in wanted]
        await asyncio.sleep(0)
        await world.name((await world.entries())[:12], said=False)
        done, pending = await asyncio.wait(waiting, timeout=1)
        assert sum(task.result() for task in done) == 12
        assert len(pending) == 8
        epoch, m, digest = wanted[11]
        assert gateway.confirmations.known(epoch) == (m, digest), (
            "what was learned by asking is known like what was heard"
        )
        await world.name(said=False)
        assert all(await asyncio.gather(*pending))
        assert gateway.confirmations.known(epoch) == wanted[-1][1:]
        assert gateway.confirmations.known(epoch + 1) == (0, "")


async def test_one_missed_naming_among_many_is_asked_for_without_waiting_for_silence(world: World) -> None:
    async with world.gateway() as gateway:
        missed = await entry(gateway, "missed")
        waiting = asyncio.create_task(gateway.confirmations.wait(*missed, soon()))
        await asyncio.sleep(0)
        await world.name(said=False)
        for m in range(missed[1] + 1, 40):
            await say(world, Naming(missed[0], [(m, "0" * 40)]))
            await asyncio.sleep(0.02)
            if waiting.done():
                break
        assert waiting.done(), "news of others came all the time"
        assert await waiting


async def test_a_cut_subscription_is_made_anew_and_nothing_is_lost(world: World) -> None:
    async with world.gateway() as gateway:
        wanted = [await entry(gateway, f"o{number}") for number in range(5)]
        waiting = [asyncio.create_task(gateway.confirmations.wait(*one, soon())) for one in wanted]
        await asyncio.sleep(0)
        assert await world.redis.command("CLIENT", "KILL", "TYPE", "pubsub") == 1
        await world.name()
        assert all(await asyncio.gather(*waiting))
        await gateway.confirmations.subscribed()
        later = await entry(gateway, "later")
        await world.name()
        assert await gateway.confirmations.wait(*later, soon())


async def test_an_epoch_that_is_gone_confirms_nothing(world: World) -> None:
    async with world.gateway() as gateway:
        named, lost = await entry(gateway, "a"), await entry(gateway, "b")
        await world.name((await world.entries())[:1], said=False)
        waiting = [asyncio.create_task(gateway.confirmations.wait(*one, soon())) for one in (named, lost)]
        old = world.names
        await world.open_epoch()
        await asyncio.sleep(0.3)
        assert waiting[0].done()
        await world.redis.command("DEL", old.head, old.log)
        assert await asyncio.gather(*waiting) == [True, False]


async def test_what_no_leader_said_is_passed_over(world: World) -> None:
    async with world.gateway() as gateway:
        wanted = await entry(gateway, "a")
        waiting = asyncio.create_task(gateway.confirmations.wait(*wanted, soon()))
        await world.redis.command("PUBLISH", redis_keys.confirmed_channel(0), b"\xc1 not msgpack")
        await say(world, Naming(wanted[0] + 1, [(wanted[1], wanted[2])]))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await world.name()
        assert await waiting


async def test_waiting_ends_at_the_deadline_and_leaves_nothing(world: World) -> None:
    async with world.gateway() as gateway:
        wanted = await entry(gateway, "a")
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await gateway.confirmations.wait(*wanted, soon(0.2))
        assert 0.2 <= time.monotonic() - began < 1
        waiting = asyncio.create_task(gateway.confirmations.wait(*wanted, soon()))
        other = asyncio.create_task(gateway.confirmations.wait(*wanted, soon()))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert gateway.confirmations.waiting == 1
        await world.name()
        assert await other
        assert gateway.confirmations.waiting == 0


async def test_those_who_wait_are_told_when_listening_ends(world: World) -> None:
    told: list[bool | None] = []
    async with world.gateway() as gateway:
        gateway.confirmations.expect(*await entry(gateway, "a"), soon(), told.append)
    assert told == [None]


async def test_thousands_wait_cheaply(world: World, servers: Servers) -> None:
    confirmations = Confirmations(world.settings, world.redis, 0)
    told = 0

    def tell(confirmed: bool | None) -> None:
        nonlocal told
        told += confirmed is True

    digests = [f"{m:040x}" for m in range(5_000)]
    for m, digest in enumerate(digests):
        confirmations.expect(1, m, digest, soon(), tell)
    for first in range(0, 5_000, 50):
        confirmations.take(Naming(1, [(m, digests[m]) for m in range(first, first + 50)]))
    assert told == 5_000
    assert confirmations.waiting == 0
