"""Cancels work at a counted place instead of after a time: at its own n-th wait, or at the n-th step of anything that runs.

A coroutine is stepped by hand, so every one of its suspensions is seen, in the order in which they come. That makes a
sweep over n exhaustive: it ends with the first n that the work does not reach.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from enum import Enum
from typing import Any, Final, NamedTuple

QUIET_LIMIT_S: Final = 10.0
"""How long what runs beside may take to come to rest after a cancellation."""


class When(Enum):
    """At which moment of a wait the cancellation comes."""

    BEGINS = "begins"
    """What is waited for has not happened, as far as this task knows."""
    IS_OVER = "is over"
    """It has happened, and its result is there, but the task has not been told yet."""


class _Stepped(Coroutine[Any, Any, Any]):
    """A coroutine that tells of each of its suspensions before it suspends, with the future that it waits for."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], tell: Callable[[Any], None]) -> None:
        self._coroutine = coroutine
        self._tell = tell

    def send(self, value: Any) -> Any:
        waited = self._coroutine.send(value)
        self._tell(waited)
        return waited

    def throw(self, *error: Any) -> Any:
        waited = self._coroutine.throw(*error)
        self._tell(waited)
        return waited

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        # The interface asks for it, and nobody may use it: a task sends to a coroutine, and awaiting would pass `tell` by.
        raise TypeError("to be run by a task of its own")

    def __repr__(self) -> str:
        return repr(self._coroutine)


class Ended(NamedTuple):
    """What became of work that was to be cancelled."""

    reached: bool
    """Whether there was an n-th place at all."""
    cancelled: bool
    result: Any


async def cancelled_at(n: int, work: Coroutine[Any, Any, Any], when: When) -> Ended:
    """Run the work in a task of its own and cancel it at its n-th suspension, from 1. What it raises beside is raised."""
    waits = 0
    task: asyncio.Task[Any]

    def tell(waited: Any) -> None:
        nonlocal waits
        waits += 1
        if waits != n:
            return
        if when is When.IS_OVER and asyncio.isfuture(waited):
            # Called before the task itself hears of it: both are callbacks, in the order in which they were added.
            waited.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()

    task = asyncio.get_running_loop().create_task(_Stepped(work, tell))
    return await _ended(task, lambda: waits >= n)


async def _ended(task: asyncio.Task[Any], reached: Callable[[], bool]) -> Ended:
    try:
        result = await task
    except asyncio.CancelledError:
        if not task.cancelled():
            # It is this test that is cancelled, by a limit or by what fails beside it.
            raise
        return Ended(reached(), cancelled=True, result=None)
    return Ended(reached(), cancelled=False, result=result)


class EveryStep:
    """Counts the steps of every task that is made while it is installed, whoever makes it."""

    def __init__(self) -> None:
        self._steps = 0
        self._due: int | None = None
        self._victim: asyncio.Task[Any] | None = None

    @asynccontextmanager
    async def installed(self) -> AsyncGenerator[None]:
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()
        loop.set_task_factory(self._make)
        try:
            yield
        finally:
            loop.set_task_factory(before)

    def _make(self, loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Stepped(work, self._step), loop=loop, **named)

    def _step(self, _waited: Any) -> None:
        self._steps += 1
        if self._steps == self._due:
            assert self._victim is not None
            self._due = None
            self._victim.cancel()

    async def cancelled_at(self, n: int, work: Coroutine[Any, Any, Any]) -> Ended:
        """Run the work and cancel it when n steps, its own or others', were taken since it began."""
        task = self._victim = asyncio.get_running_loop().create_task(work)
        self._due = self._steps + n
        try:
            return await _ended(task, lambda: self._due is None)
        finally:
            self._due = None


async def at_rest(before: set[asyncio.Task[Any]], also: Callable[[], bool] = lambda: True) -> None:
    """Wait until no task is left that was not there before, and `also` holds; whatever is still there is shown."""
    left: set[asyncio.Task[Any]] = set()
    known = {*before, asyncio.current_task()}
    try:
        async with asyncio.timeout(QUIET_LIMIT_S):
            while (left := {task for task in asyncio.all_tasks() - known if not task.done()}) or not also():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"never at rest again: {left or 'nothing runs, but it does not hold'}") from None


async def sweep(
    attempt: Callable[[int], Awaitable[Ended]], *, stride: int = 1, first: int = 1, places_max: int = 5_000
) -> int:
    """Attempt n = first, first + stride, … until the work comes to its end before its n-th place; how many were cancelled."""
    cancelled = 0
    for n in range(first, places_max, stride):
        ended = await attempt(n)
        cancelled += ended.cancelled
        if not ended.reached:
            return cancelled
    raise AssertionError(f"more than {places_max} places")
