"""A process of ours ends when it is asked to, and its failpoints are armed before anything runs."""

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, sys
import uvloop
from kernel import failpoints
from kernel.process import run_until_signal
from kernel.settings import Settings

async def main(stop: asyncio.Event) -> int:
    print("up", isinstance(asyncio.get_running_loop(), uvloop.Loop), flush=True)
    failpoints.hit("test.point")
    await stop.wait()
    print("drained", flush=True)
    return 7

sys.exit(run_until_signal(main, Settings()))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_it_drain_and_its_code_is_the_exit_code(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up True\n"
        process.send_signal(number)
        assert process.stdout.read() == "drained\n"
        assert process.wait() == 7


def test_failpoints_are_armed_from_the_settings() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"STOCKGATE_FAILPOINTS": "test.point=kill", "PATH": ""},
        capture_output=True,
        check=False,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "up True\n")


STUBBORN = """
import asyncio, sys, time
from contextlib import suppress
from kernel import process
from kernel.settings import Settings

process.LAST_RESORT_S = 0.5

async def waits(stop: asyncio.Event) -> int:
    print("up", flush=True)
    await asyncio.Event().wait()

async def swallows(stop: asyncio.Event) -> int:
    print("up", flush=True)
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)

async def blocks(stop: asyncio.Event) -> int:
    print("up", flush=True)
    await stop.wait()
    time.sleep(60)

sys.exit(process.run_until_signal(globals()[sys.argv[1]], Settings(shutdown_grace_s=1)))
"""


@pytest.mark.parametrize(
    ("how", "told"), [("waits", "shutdown_overdue"), ("swallows", "shutdown_overdue"), ("blocks", "Timeout")]
)
def test_whatever_holds_it_up_it_ends_and_says_so(how: str, told: str) -> None:
    """A wait that never ends, a task that cannot be cancelled, a call that blocks the loop."""
    command = [sys.executable, "-c", STUBBORN, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
        said = process.stdout.read()
        assert process.wait(60) == 1
    assert told in said
    assert how in said, "it says where it was"
