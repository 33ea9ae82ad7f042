"""One round of load by wrk, from a process of its own: what was answered, how quickly, and what wrk itself cost."""

import asyncio
import json
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SCRIPTS = Path(__file__).parent / "wrk"
START_AND_END_S = 30.0

Script = Literal["reserve", "operations", "paced"]


class LoadFailedError(Exception):
    """A round in which something was not accepted, or that did not take place; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of load: which script, how long, over how many connections and keys."""

    seconds: float
    connections: int = 64
    keys: int = 1_000
    script: Script = "reserve"


@dataclass(frozen=True, slots=True)
class Round:
    """What wrk saw. Latencies are those of whole requests, in milliseconds, from sending to the answer's end."""

    accepted: int
    """Operations that were accepted: answered 201, and where confirms are among them 200."""
    reserved: int
    """Reserves of one unit that were answered 201."""
    seconds: float
    p50_ms: float
    p99_ms: float
    wrk_cpu_s: float
    figures: Mapping[str, float]
    """All that the script printed."""

    @property
    def per_s(self) -> float:
        return self.accepted / self.seconds


async def run_wrk(url: str, load: Load, environment: Mapping[str, str]) -> Round:
    """One round; raises LoadFailedError unless every request was answered and every operation accepted."""
    seconds = max(1, round(load.seconds))
    command = ["wrk", "-t1", f"-c{load.connections}", f"-d{seconds}s", "--timeout", "10s"]
    process = await asyncio.create_subprocess_exec(
        *(*command, "-s", str(SCRIPTS / f"{load.script}.lua"), url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "KEYS": str(load.keys), **environment},
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        async with asyncio.timeout(seconds + START_AND_END_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise LoadFailedError(f"wrk did not end within {seconds + START_AND_END_S:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        raise LoadFailedError(f"wrk failed:\n{output.decode()}")
    figures: dict[str, float] = json.loads(lines[-1])
    if not figures["requests"]:
        raise LoadFailedError(f"nothing was answered within {seconds} s:\n{output.decode()}")
    refused = figures["status_errors"] + figures["socket_errors"] + figures.get("not_accepted", 0)
    if refused:
        raise LoadFailedError(f"{refused:.0f} requests or operations were not accepted:\n{output.decode()}")
    return Round(
        accepted=int(figures.get("accepted", figures["requests"])),
        reserved=int(figures.get("reserved", figures.get("accepted", figures["requests"]))),
        seconds=figures["seconds"],
        p50_ms=figures["p50_us"] / 1000,
        p99_ms=figures["p99_us"] / 1000,
        wrk_cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        figures=figures,
    )
