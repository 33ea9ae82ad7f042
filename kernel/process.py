"""How every process of ours runs: uvloop, failpoints armed, SIGTERM and SIGINT as an event that asks it to end."""

import asyncio
import gc
import resource
import signal
from collections.abc import Awaitable, Callable

import uvloop

from kernel import failpoints
from kernel.settings import Settings


def run_until_signal(main: Callable[[asyncio.Event], Awaitable[int]], settings: Settings) -> int:
    """Run `main` and return its exit code. The event it is given is set by SIGTERM or SIGINT; it then drains and returns.

    A second signal does not hurry it: draining has its own limits, and a kill is as safe. Raises what `main` raises.
    """
    failpoints.arm(settings.failpoints)

    async def until_signal() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        return await main(stop)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(until_signal())


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
