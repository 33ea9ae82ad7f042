"""Many requests, few calls: what waits for what, and what a request hears when something is slow, gone or forked."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator

import pytest

from inventory.batcher import Answer
from inventory.hot_path import Failure
from inventory.moves import Move
from inventory.operations import Operation
from kernel import limits
from stockgate.servers import Servers
from tests.integration.hot_world import (
    Gateway,
    Pause,
    World,
    adjust,
    confirm,
    outcomes,
    read,
    release,
    reserve,
    settle,
)


@pytest.fixture
async def world(servers: Servers) -> AsyncGenerator[World]:
    async with World.open(servers, answer_deadline_ms=3_000) as world:
        await world.stock("k1", "k2", available=1_000)
        yield world


def submit(gateway: Gateway, *ops: Operation) -> "asyncio.Task[Answer]":
    return asyncio.create_task(gateway.batcher.submit(ops))


async def known(world: World, gateway: Gateway, *orders: str) -> None:
    """Make orders that Redis knows and whose entries are named."""
    for order in orders:
        await gateway.path.decide([reserve(order)])
    await world.name()


async def calls(gateway: Gateway) -> list[int]:
    """Operations per call so far, by the histogram: [calls, operations]."""
    samples = {
        sample.name: sample.value for metric in gateway.metrics.batch_operations.collect() for sample in metric.samples
    }
    return [int(samples["stockgate_batch_operations_count"]), int(samples["stockgate_batch_operations_sum"])]


# --- what an answer waits for -------------------------------------------------------------------------------------------


async def test_a_promise_waits_until_its_entry_is_named(world: World) -> None:
    async with world.gateway() as gateway:
        submitted = submit(gateway, reserve("a"))
        done, _ = await asyncio.wait([submitted], timeout=0.3)
        assert not done
        assert len(await world.changes()) == 1
        # A replay and a reading wait for the same entry; a refusal promises nothing.
        replay, reading = submit(gateway, reserve("a")), submit(gateway, read("a"))
        refused = await submit(gateway, reserve("b", ("k1", 5_000)))
        assert outcomes(refused.results) == ["INSUFFICIENT_STOCK"]
        assert not replay.done()
        assert not reading.done()
        await world.name()
        answers = await asyncio.gather(submitted, replay, reading)
        assert [outcomes(answer.results)[0] for answer in answers] == ["DONE", "REPLAY", "DONE"]
        assert {(answer.durability, answer.epoch) for answer in answers} == {("broker", 1)}
        assert abs(answers[0].now_ms - time.time() * 1000) < 5_000
        # What is confirmed is answered at once.
        async with asyncio.timeout(1):
            assert outcomes((await submit(gateway, reserve("a"), read("a"))).results) == ["REPLAY", "DONE"]


async def test_with_ack_redis_the_script_is_enough(world: World) -> None:
    async with world.gateway(settings=world.settings.model_copy(update={"ack": "redis"})) as gateway:
        answer = await submit(gateway, reserve("a"), confirm("a"))
        assert outcomes(answer.results) == ["DONE", "DONE"]
        assert answer.durability == "redis"


async def test_a_request_decided_by_two_calls_waits_for_both_entries(world: World) -> None:
    async with world.gateway() as gateway:
        await known(world, gateway, "a")
        submitted = submit(gateway, confirm("a"), reserve("cold", ("k2", 1)), release("cold"))
        async with asyncio.timeout(3):
            while len(await world.entries(1)) < 2:
                await asyncio.sleep(0.01)
        first, second = await world.entries(1)
        await world.name([first])
        done, _ = await asyncio.wait([submitted], timeout=0.3)
        assert not done
        await world.name([second])
        assert outcomes((await submitted).results) == ["DONE", "DONE", "DONE"]


async def test_a_forked_entry_leaves_its_answers_unknown(world: World) -> None:
    async with world.gateway() as gateway:
        submitted = submit(gateway, reserve("a"))
        refused = submit(gateway, reserve("b", ("k1", 5_000)))
        assert outcomes((await refused).results) == ["INSUFFICIENT_STOCK"]
        # Redis came back without the entry and gave its number to another one.
        await world.redis.command("DEL", world.names.head, world.names.log)
        async with asyncio.timeout(2):
            answer = await submitted
        assert outcomes(answer.results) == ["UNAVAILABLE unknown"]


async def test_a_missed_naming_is_asked_for(world: World) -> None:
    async with world.gateway() as gateway:
        submitted = [submit(gateway, reserve(f"o{number}")) for number in range(50)]
        await asyncio.wait(submitted, timeout=0.1)
        async with asyncio.timeout(2):
            while len(await world.changes()) < 50:
                await asyncio.sleep(0.01)
            await world.name(said=False)
            answers = await asyncio.gather(*submitted)
        assert [outcomes(answer.results) for answer in answers] == [["DONE"]] * 50


# --- order and batches --------------------------------------------------------------------------------------------------


async def test_what_arrives_together_is_decided_together(world: World) -> None:
    async with world.naming(), world.gateway() as gateway:
        answers = await asyncio.gather(*(submit(gateway, reserve(f"o{number}")) for number in range(300)))
        assert {outcomes(answer.results)[0] for answer in answers} == {"DONE"}
        made, operations = await calls(gateway)
        assert made <= 10
        assert operations >= 300
        assert len(await world.entries()) <= 10


async def test_operations_of_one_request_keep_their_order_over_loading(world: World) -> None:
    async with world.naming(), world.gateway() as gateway:
        ops = [
            reserve("a", ("k1", 1)),
            confirm("a"),
            reserve("b", ("k2", 1)),
            release("b"),
            settle(Move.CONSUME, "a"),
            reserve("b", ("k2", 1)),
            adjust("r", "k2", -999),
            reserve("c", ("k2", 2)),
            reserve("d", ("u", 1)),
            reserve("c", ("k2", 1)),
            release("nobody"),
        ]
        answer = await submit(gateway, *ops)
        assert outcomes(answer.results) == [
            "DONE",
            "DONE",
            "DONE",
            "DONE",
            "DONE",
            "ORDER_CLOSED",
            "DONE",
            "INSUFFICIENT_STOCK",
            "UNKNOWN_INVENTORY_KEY",
            "DONE",
            "UNKNOWN_ORDER",
        ]


async def test_a_slow_look_up_holds_up_nobody_who_needs_none(world: World) -> None:
    async with world.naming(), world.gateway() as gateway:
        await known(world, gateway, "a", "b")
        pause = Pause(gateway.loader, "look_up")
        slow = submit(gateway, reserve("c"))
        await pause.reached.wait()
        async with asyncio.timeout(1):
            assert outcomes((await submit(gateway, confirm("a"), read("b"))).results) == ["DONE", "DONE"]
        assert not slow.done()
        pause.go_on.set()
        assert outcomes((await slow).results) == ["DONE"]


async def test_the_next_look_up_runs_beside_the_call(world: World) -> None:
    async with world.naming(), world.gateway() as gateway:
        await known(world, gateway, "a")
        call = Pause(gateway.path, "call")
        looked_up = Pause(gateway.loader, "look_up")
        looked_up.go_on.set()
        first = submit(gateway, confirm("a"))
        await call.reached.wait()
        second = submit(gateway, reserve("b"))
        async with asyncio.timeout(1):
            await looked_up.reached.wait()
        call.go_on.set()
        assert outcomes((await first).results) == outcomes((await second).results) == ["DONE"]


async def test_the_last_unit_is_sold_once_by_two_gateways(world: World) -> None:
    await world.stock("rare", available=1)
    async with world.naming(), world.gateway() as one, world.gateway() as other:
        answers = await asyncio.gather(
            *(
                submit(gateway, reserve(f"{number}-{id(gateway)}", ("rare", 1)))
                for number in range(30)
                for gateway in (one, other)
            )
        )
    assert sorted(outcomes(answer.results)[0] for answer in answers) == ["DONE"] + ["INSUFFICIENT_STOCK"] * 59
    assert (await world.balance("rare"))["reserved"] == 1


async def test_one_order_asked_for_by_fifty_is_taken_once(world: World) -> None:
    async with world.naming(), world.gateway() as one, world.gateway() as other:
        answers = await asyncio.gather(*(submit(gateway, reserve("a")) for _ in range(25) for gateway in (one, other)))
    assert sorted(outcomes(answer.results)[0] for answer in answers) == ["DONE"] + ["REPLAY"] * 49
    assert len(await world.changes()) == 1


async def test_a_request_larger_than_a_call_is_decided_in_pieces(world: World) -> None:
    keys = [f"w{number}" for number in range(400)]
    await world.stock(*keys)
    async with world.naming(), world.gateway() as gateway:
        ops = [reserve(f"o{number}", *((key, 1) for key in keys)) for number in range(7)]
        answer = await submit(gateway, *ops, *(confirm(f"o{number}") for number in range(7)))
        assert outcomes(answer.results) == ["DONE"] * 14
        assert (await calls(gateway))[0] > 3
    assert (await world.balance("w399"))["sold"] == 7


# --- trouble ------------------------------------------------------------------------------------------------------------


async def test_one_requests_trouble_is_not_anothers(world: World) -> None:
    async with world.naming(), world.gateway() as gateway:
        await known(world, gateway, "a", "b")
        await world.servers.mariadb.kill()
        answers = await asyncio.gather(
            submit(gateway, reserve("new"), confirm("a")),
            submit(gateway, confirm("nobody")),
            submit(gateway, confirm("b")),
        )
        assert [outcomes(answer.results) for answer in answers] == [
            ["UNAVAILABLE not_executed", "DONE"],
            ["UNAVAILABLE not_executed"],
            ["DONE"],
        ]
        await world.servers.mariadb.start()
        assert outcomes((await submit(gateway, reserve("new"))).results) == ["DONE"]


async def test_a_lost_reply_is_unknown_and_the_repeat_learns_what_happened(world: World) -> None:
    quick = world.settings.model_copy(update={"redis_timeout_ms": 300})
    async with world.gateway(settings=quick) as gateway:
        await known(world, gateway, "a")
        await world.servers.redis.kill(signal.SIGSTOP)
        # The look-up comes first and needs no Redis; the call's reply does not come in time.
        answer = await submit(gateway, reserve("b"), confirm("a"))
        assert outcomes(answer.results) == ["UNAVAILABLE unknown", "UNAVAILABLE unknown"]
        await world.servers.redis.kill(signal.SIGCONT)
        async with world.naming():
            again = await submit(gateway, reserve("b"), confirm("a"))
        assert outcomes(again.results) in (["REPLAY", "REPLAY"], ["DONE", "DONE"])
        assert len(await world.changes()) == 3


async def test_the_deadline_says_what_is_known(world: World) -> None:
    short = world.settings.model_copy(update={"answer_deadline_ms": 400})
    async with world.gateway(settings=short) as gateway:
        await known(world, gateway, "a", "b")
        # Decided, not named.
        assert outcomes((await submit(gateway, confirm("a"))).results) == ["UNAVAILABLE unknown"]
        await world.name()
        assert outcomes((await submit(gateway, confirm("a"))).results) == ["REPLAY"]
        # In the call, and behind the call.
        pause = Pause(gateway.path, "call")
        calling = submit(gateway, confirm("b"))
        await pause.reached.wait()
        queued = submit(gateway, release("a"), reserve("c"))
        began = time.monotonic()
        assert outcomes((await calling).results) == ["UNAVAILABLE unknown"]
        assert outcomes((await queued).results) == ["UNAVAILABLE not_executed"] * 2
        assert time.monotonic() - began < 1
        pause.go_on.set()
        await asyncio.sleep(0.1)
        assert [change.ref for change in await world.changes()] == ["a", "b", "a", "b"]


async def test_a_process_that_slept_past_the_deadline_does_not_send(world: World) -> None:
    short = world.settings.model_copy(update={"answer_deadline_ms": 200})
    async with world.gateway(settings=short) as gateway:
        await known(world, gateway, "a")
        submitted = submit(gateway, confirm("a"))
        await asyncio.sleep(0)
        time.sleep(0.3)  # noqa: ASYNC251 - the whole process stands still, as after SIGSTOP
        assert outcomes((await submitted).results) == ["UNAVAILABLE not_executed"]
        await asyncio.sleep(0.1)
        assert len(await world.changes()) == 1


async def test_beyond_the_bounds_requests_are_refused_and_settling_has_a_line_of_its_own(world: World) -> None:
    async with world.naming(), world.gateway() as gateway:
        await known(world, gateway, "a")
        pause = Pause(gateway.loader, "look_up")
        full = limits.BATCH_QUEUE_OPERATIONS_MAX // 400
        waiting = [
            submit(gateway, *(reserve(f"o{request}-{number}") for number in range(400))) for request in range(full + 10)
        ]
        await pause.reached.wait()
        await asyncio.sleep(0)
        refused = [task for task in waiting if task.done()]
        assert refused
        assert {outcome for task in refused for outcome in outcomes(task.result().results)} == {
            "OVERLOADED not_executed"
        }
        async with asyncio.timeout(1):
            assert outcomes((await submit(gateway, confirm("a"))).results) == ["DONE"]
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        pause.go_on.set()
        assert outcomes((await submit(gateway, reserve("b"))).results) == ["DONE"]
        assert gateway.batcher._open_operations == gateway.batcher._lacking.operations == 0


async def test_what_would_spoil_a_call_is_refused_before_it(world: World) -> None:
    async with world.naming(), world.gateway() as gateway:
        wrong = [
            reserve("bad"),
            reserve("ünicode"),
            reserve("a", ("schlüssel", 1)),
            settle(Move.CONFIRM, "a", tenant="ü"),
            adjust("r", "k1", 1),
        ]
        wrong[0].lines, wrong[4].lines = [], []
        for op in wrong:
            with pytest.raises(ValueError, match=r"ASCII|lines"):
                await gateway.batcher.submit([op])
        assert outcomes((await submit(gateway, reserve("a"))).results) == ["DONE"]


async def test_draining_answers_everything_and_takes_nothing_new(world: World) -> None:
    async with world.gateway() as gateway:
        submitted = submit(gateway, reserve("a"))
        await asyncio.sleep(0.1)
        draining = asyncio.create_task(gateway.batcher.drain())
        await asyncio.sleep(0)
        assert outcomes((await submit(gateway, reserve("b"))).results) == ["UNAVAILABLE not_executed"]
        assert not draining.done()
        await world.name()
        await draining
        assert outcomes((await submitted).results) == ["DONE"]


async def test_who_is_open_when_it_ends_hears_what_is_known(world: World) -> None:
    async with world.gateway() as gateway:
        await known(world, gateway, "a")
        unnamed = submit(gateway, confirm("a"))
        await asyncio.sleep(0.2)
        pause = Pause(gateway.path, "call")
        calling = submit(gateway, release("nobody"))
        await pause.reached.wait()
        queued = submit(gateway, reserve("c"))
        await asyncio.sleep(0)
    assert [outcomes((await task).results) for task in (unnamed, calling, queued)] == [
        ["UNAVAILABLE unknown"],
        ["UNAVAILABLE unknown"],
        ["UNAVAILABLE not_executed"],
    ]


async def test_a_caller_that_leaves_takes_nobody_with_it(world: World) -> None:
    """Cancelled in the queue, in the look-up, in the call, and while it waits for the name."""
    async with world.gateway() as gateway:
        await known(world, gateway, "a")
        for stage, (owner, method) in {
            "queue": (gateway.path, "call"),
            "look-up": (gateway.loader, "look_up"),
            "call": (gateway.deciding, "run"),
        }.items():
            original = getattr(owner, method)
            pause = Pause(owner, method)
            blocker = submit(gateway, reserve(f"blocker-{stage}"))
            await pause.reached.wait()
            leaving, staying = (
                submit(gateway, reserve(f"leaving-{stage}")),
                submit(gateway, reserve(f"staying-{stage}")),
            )
            await asyncio.sleep(0.05)
            leaving.cancel()
            pause.go_on.set()
            await asyncio.wait([leaving])
            assert leaving.cancelled()
            setattr(owner, method, original)
            async with world.naming():
                assert outcomes((await blocker).results) == outcomes((await staying).results) == ["DONE"]
        assert not [change for change in await world.changes() if change.ref.startswith("leaving")], "not sent yet"
        leaving, staying = submit(gateway, reserve("leaving-name")), submit(gateway, reserve("staying-name"))
        await asyncio.sleep(0.2)
        leaving.cancel()
        await asyncio.wait([leaving])
        async with world.naming():
            assert outcomes((await staying).results) == ["DONE"]
            # What was sent is decided, and learned by asking again.
            assert outcomes((await submit(gateway, reserve("leaving-name"))).results) == ["REPLAY"]
        assert gateway.confirmations.waiting == 0
        assert not gateway.batcher._open
        assert gateway.batcher._open_operations == gateway.batcher._ready.operations == 0


async def test_callers_that_leave_at_any_moment_leave_no_trace_of_half_an_operation(world: World) -> None:
    async with world.naming(), world.gateway() as gateway:
        for steps in range(60):
            leaving = submit(gateway, reserve(f"o{steps}"), confirm(f"o{steps}"))
            staying = submit(gateway, reserve(f"s{steps}"))
            for _ in range(steps):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
            assert outcomes((await staying).results) == ["DONE"]
            again = await submit(gateway, reserve(f"o{steps}"), confirm(f"o{steps}"))
            assert outcomes(again.results) in (["DONE", "DONE"], ["ORDER_CLOSED", "REPLAY"])
        changes = [change.kind for change in await world.changes() if change.ref.startswith("o")]
        assert changes.count(Move.RESERVE) == changes.count(Move.CONFIRM) == 60
        assert gateway.confirmations.waiting == 0


async def test_what_was_answered_is_counted(world: World) -> None:
    async with world.naming(), world.gateway() as gateway:
        await submit(gateway, reserve("a"), reserve("a"), reserve("b", ("k1", 5_000)), confirm("nobody"))
        await world.servers.mariadb.kill()
        await submit(gateway, confirm("nobody"))
        await world.servers.mariadb.start()
        await asyncio.sleep(0.1)
        text = gateway.metrics.render().decode()
    for line in (
        'stockgate_operations_total{kind="RESERVE",outcome="DONE"} 2.0',
        'stockgate_operations_total{kind="RESERVE",outcome="INSUFFICIENT_STOCK"} 1.0',
        'stockgate_operations_total{kind="CONFIRM",outcome="UNKNOWN_ORDER"} 1.0',
        'stockgate_operations_total{kind="CONFIRM",outcome="UNAVAILABLE_NOT_EXECUTED"} 1.0',
        'stockgate_replays_total{kind="RESERVE"} 1.0',
        'stockgate_operation_seconds_count{kind="RESERVE"} 1.0',
    ):
        assert line in text


async def test_a_failure_says_when_to_come_again(world: World) -> None:
    await world.fence()
    async with world.gateway() as gateway:
        (failure,) = (await submit(gateway, confirm("a"))).results
        assert isinstance(failure, Failure)
        assert (failure.code, failure.outcome, failure.retry_after_s) == ("SHARD_CLOSED", "not_executed", 1)
