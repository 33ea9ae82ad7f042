"""While MySQL decides: one transaction takes all that waits, answers say so, and too much is refused before it piles up."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import cast

from inventory.batcher import Batcher
from inventory.confirmations import Confirmations
from inventory.hot_path import Called, Failure, Need, Prepared
from inventory.moves import Move
from inventory.operations import Line, Operation, Result
from inventory.outcomes import CallStatus, Outcome
from inventory.shard_path import ShardPath
from kernel import limits
from kernel.metrics import Metrics
from kernel.settings import Settings


class Path:
    """Decides everything as MySQL would, call by call, once it is let."""

    decided_by_mysql = True
    looks_up = False
    epoch = 0

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.go_on = asyncio.Event()

    async def prepare(self, needs: Sequence[Need]) -> Prepared:
        raise AssertionError(f"MySQL needs no look-up: {needs}")

    async def call(self, ops: Sequence[Operation], *, proven_in: int) -> Called:
        del proven_in
        self.calls.append(len(ops))
        await self.go_on.wait()
        return Called(CallStatus.DECIDED, 7, 0, "", 0, 1_000, [Result(Outcome.DONE) for _ in ops], "mysql")


@asynccontextmanager
async def running() -> AsyncGenerator[tuple[Batcher, Path]]:
    path = Path()
    nobody_names = cast("Confirmations", None)
    batcher = Batcher(Settings(), cast("ShardPath", path), nobody_names, Metrics())
    task = asyncio.create_task(batcher.run())
    try:
        yield batcher, path
    finally:
        path.go_on.set()
        task.cancel()
        await asyncio.wait([task])


def reserves(count: int, key: str, prefix: str = "o") -> list[Operation]:
    return [
        Operation(Move.RESERVE, 0, "t", f"{prefix}-{number}", fingerprint="f", ttl_ms=1_000, lines=[Line(key, 1)])
        for number in range(count)
    ]


async def test_an_answer_of_mysql_waits_for_nobody_and_says_who_keeps_it() -> None:
    async with running() as (batcher, path):
        path.go_on.set()
        answer = await batcher.submit(reserves(1, "k"))
    assert [decision.outcome for decision in answer.results if isinstance(decision, Result)] == [Outcome.DONE]
    assert (answer.durability, answer.epoch, answer.now_ms) == ("mysql", 7, 1_000)


async def test_one_call_takes_all_that_waits() -> None:
    async with running() as (batcher, path):
        answers = [
            asyncio.create_task(batcher.submit(reserves(1, f"k{number}", f"o{number}"))) for number in range(101)
        ]
        while not path.calls:
            await asyncio.sleep(0)
        path.go_on.set()
        await asyncio.gather(*answers)
        first, *rest = path.calls
    assert sum(path.calls) == 101
    assert len(rest) <= 1, f"{first} alone, and all others together"


async def test_a_hot_key_leaves_room_for_the_others() -> None:
    async with running() as (batcher, path):
        hot = [
            asyncio.create_task(batcher.submit(reserves(64, "hot", f"hot{number}")))
            for number in range(limits.DB_KEY_OPEN_OPERATIONS_MAX // 64)
        ]
        await asyncio.sleep(0)
        refused = (await batcher.submit(reserves(1, "hot", "late"))).results[0]
        assert isinstance(refused, Failure)
        assert (refused.code, refused.outcome) == ("TOO_MANY_REQUESTS", "not_executed")
        other = asyncio.create_task(batcher.submit(reserves(1, "cold", "other")))
        await asyncio.sleep(0)
        path.go_on.set()
        assert isinstance((await other).results[0], Result)
        await asyncio.gather(*hot)
        # Answered, it is counted no more.
        assert isinstance((await batcher.submit(reserves(1, "hot", "later"))).results[0], Result)


async def test_what_mysql_could_not_decide_in_time_is_refused_at_once() -> None:
    async with running() as (batcher, path):
        full = [
            asyncio.create_task(batcher.submit(reserves(256, f"k{number}", f"o{number}")))
            for number in range(limits.DB_OPEN_OPERATIONS_MAX // 256)
        ]
        await asyncio.sleep(0)
        refused = (await batcher.submit(reserves(1, "one more"))).results[0]
        assert isinstance(refused, Failure)
        assert (refused.code, refused.outcome) == ("TOO_MANY_REQUESTS", "not_executed")
        path.go_on.set()
        answers = await asyncio.gather(*full)
    assert all(isinstance(decision, Result) for answer in answers for decision in answer.results)
