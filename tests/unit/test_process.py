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
