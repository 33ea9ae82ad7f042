"""How every process of ours runs: uvloop, failpoints armed, SIGTERM and SIGINT as an event that asks it to end."""

import asyncio
import faulthandler
import gc
import resource
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

import uvloop

from kernel import failpoints
from kernel.logs import get_logger
from kernel.settings import Settings

OVERDUE: Final = 1
"""The exit code of a process that did not end in time."""
LAST_RESORT_S: Final = 5.0
"""So long after its limit a process that does not even end when it is cancelled is ended from outside of its loop."""


def run_until_signal(main: Callable[[asyncio.Event], Coroutine[Any, Any, int]], settings: Settings) -> int:
    """Run `main` and return its exit code. The event it is given is set by SIGTERM or SIGINT; it then drains and returns.

    It has `drain_delay_ms` and `shutdown_grace_s` for that. What is not done then is cancelled, and the exit code is
    `OVERDUE`; what cannot be cancelled either is ended with all stacks on stderr. Both are as safe as a kill. A second
    signal changes nothing. Raises what `main` raises.
    """
    failpoints.arm(settings.failpoints)
    limit_s = settings.drain_delay_ms / 1000 + settings.shutdown_grace_s

    async def until_signal() -> int:
        stop = asyncio.Event()

        def ask_to_end() -> None:
            if not stop.is_set():
                faulthandler.dump_traceback_later(limit_s + LAST_RESORT_S, exit=True)
                stop.set()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask_to_end)
        return await _within(main(stop), stop, limit_s)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(until_signal())
    finally:
        faulthandler.cancel_dump_traceback_later()


async def _within(work: Coroutine[Any, Any, int], stop: asyncio.Event, limit_s: float) -> int:
    """The exit code of `work`, which has so long after `stop` before it is cancelled."""
    working, asked = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((working, asked), return_when=asyncio.FIRST_COMPLETED)
    asked.cancel()
    if not working.done():
        await asyncio.wait((working,), timeout=limit_s)
    if working.done():
        return working.result()
    get_logger().error("shutdown_overdue", limit_s=limit_s, waits=sorted(_where(task) for task in asyncio.all_tasks()))
    working.cancel()
    await asyncio.wait((working,), timeout=LAST_RESORT_S / 2)
    return OVERDUE


def _where(task: asyncio.Task[Any]) -> str:
    """Where a task waits, for the log."""
    frames = task.get_stack(limit=1)
    place = f"{frames[0].f_code.co_qualname}:{frames[0].f_lineno}" if frames else "nowhere"
    return f"{task.get_name()} in {place}"


def collect_seldom(allocations: int) -> None:
    """Let Python look for cycles of garbage only after so many more objects than were let go, and never among those that
    are there now: the modules, which every full search walks through.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(allocations, 20, 20)


def allow_open_files(wanted: int) -> int:
    """Raise this process' own bound on open files to `wanted`, or as far as the system lets it; the bound in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < wanted:
        soft = wanted if hard == unlimited else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == unlimited else soft
