"""Reserves per second against a baseline of the same minute: `make bench`, or `python -m loadtests.bench --help`.

Everything runs on this machine: wrk with 64 connections, the server under test, Redis, RabbitMQ, MariaDB and, for
Stockgate, the persist worker, which writes all the while. Rounds alternate, because machines drift; only the ratios of one
run mean something.
"""

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import shutil
import socket
import statistics
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2

from loadtests.baselines.seed import fill

WRK_SCRIPT = Path(__file__).parent / "wrk" / "reserve.lua"
STOCK = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Round:
    """One run of wrk: accepted requests per second, latency in milliseconds."""

    target: str
    per_s: float
    errors: int
    p50_ms: float
    p99_ms: float


async def run_wrk(target: str, url: str, *, seconds: int, connections: int, environment: Mapping[str, str]) -> Round:
    """One round of load. Raises RuntimeError with wrk's own words when it fails."""
    process = await asyncio.create_subprocess_exec(
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        "--timeout",
        "10s",
        "-s",
        str(WRK_SCRIPT),
        url,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    output, _ = await process.communicate()
    lines = [line for line in output.decode().splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        raise RuntimeError(f"wrk failed on {target}:\n{output.decode()}")
    figures = json.loads(lines[-1])
    errors = figures["status_errors"] + figures["socket_errors"]
    return Round(
        target,
        (figures["requests"] - figures["status_errors"]) / figures["seconds"],
        errors,
        figures["p50_us"] / 1000,
        figures["p99_us"] / 1000,
    )


@contextlib.asynccontextmanager
async def stack(run_dir: Path, ack: str, gateways: int) -> AsyncGenerator[dict[str, Any]]:
    """A development stack of its own, stopped at the end; yields its description."""
    command = [sys.executable, "-m", "stockgate"]
    options = ["--run-dir", str(run_dir), "--port", str(free_port()), "--gateways", str(gateways), "--ack", ack]
    up = await asyncio.create_subprocess_exec(*command, "up", "--detach", *options, stdout=sys.stderr)
    if await up.wait() != 0:
        raise RuntimeError("the stack did not start; its messages stand above")
    try:
        yield json.loads((run_dir / "stack.json").read_text())
    finally:
        down = await asyncio.create_subprocess_exec(*command, "down", "--run-dir", str(run_dir), stdout=sys.stderr)
        await down.wait()


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def baseline(name: str, environment: Mapping[str, str]) -> AsyncGenerator[str]:
    """A baseline server of `loadtests.baselines` under uvicorn; yields its address."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", f"loadtests.baselines.{name}:app", "--port", str(port)),
        *("--no-access-log", "--log-level", "warning", "--loop", "uvloop", "--http", "httptools"),
        env={**os.environ, **environment},
    )
    try:
        url = f"http://127.0.0.1:{port}"
        async with asyncio.timeout(20), httpx2.AsyncClient() as client:
            while True:
                with contextlib.suppress(httpx2.TransportError):
                    await client.get(url)
                    break
                await asyncio.sleep(0.05)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def make_catalogue(gateway: str, key: str, prefix: str, count: int) -> None:
    """Create `count` keys with plenty of stock; raises on any refusal."""
    limits = httpx2.Limits(max_connections=32)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=gateway, headers=headers, limits=limits, timeout=30) as client:

        async def create(number: int) -> None:
            name = f"{prefix}{number}"
            answer = await client.post(
                "/v1/inventory",
                json={
                    "inventory_key": name,
                    "item_id": name,
                    "inventory_mode": "QTY",
                    "init_quantity": STOCK,
                    "request_no": f"create-{name}",
                },
            )
            answer.raise_for_status()

        for start in range(0, count, 32):
            await asyncio.gather(*(create(number) for number in range(start, min(start + 32, count))))


async def measure(arguments: argparse.Namespace, run_dir: Path) -> dict[str, Any]:
    """Alternate rounds of the targets and compare their medians."""
    rounds: list[Round] = []
    load = {"seconds": arguments.seconds, "connections": arguments.connections}
    async with stack(run_dir, arguments.ack, arguments.gateways) as description:
        keys_file = Path(description["keys"])
        keys = json.loads((keys_file if keys_file.is_absolute() else run_dir / keys_file.name).read_text())
        run = secrets.token_hex(3)
        prefix = f"bench-{run}-"
        await make_catalogue(description["gateway"], keys["inventory"], prefix, arguments.keys)
        redis_url = description["redis"].rsplit("/", 1)[0] + "/9"
        await fill(redis_url, arguments.keys, STOCK)
        seed_environment = {"REDIS_URL": redis_url, "AMQP_URL": description["amqp"]}
        async with baseline("seed", seed_environment) as seed_url, baseline("constant", {}) as constant_url:
            for number in range(arguments.rounds):
                for spread in ("spread", "hot"):
                    shape = {
                        "KEYS": str(arguments.keys if spread == "spread" else 1),
                        "RUN": f"{run}{number}{spread[0]}",
                    }
                    for target, url, extra in (
                        ("seed", seed_url, {"KEY_PREFIX": "k"}),
                        ("stockgate", description["gateway"], {"KEY_PREFIX": prefix, "AUTH": keys["orders"]}),
                    ):
                        path = f"{url}/v1/reservations"
                        rounds.append(await run_wrk(f"{target} {spread}", path, **load, environment={**shape, **extra}))
                        print(f"  {rounds[-1].target:18} {rounds[-1].per_s:9,.0f}/s", file=sys.stderr)
            rounds.append(await run_wrk("constant", f"{constant_url}/", **load, environment={"KEYS": "1"}))
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {keys['ops']}"}, timeout=60) as client:
            audit = (await client.get(f"{description['gateway']}/ops/audit")).json()
    medians = {
        target: statistics.median(each.per_s for each in rounds if each.target == target)
        for target in {each.target for each in rounds}
    }
    return {
        "ack": arguments.ack,
        "ratio_spread": round(medians["stockgate spread"] / medians["seed spread"], 2),
        "ratio_hot": round(medians["stockgate hot"] / medians["seed hot"], 2),
        "audit": "ok" if audit.get("ok") else "violated",
        "errors": sum(each.errors for each in rounds),
        "medians_per_s": {target: round(value) for target, value in sorted(medians.items())},
        "rounds": [asdict(each) for each in rounds],
    }


def main() -> int:
    """Parse, measure, print; exit code 0 only if every request was accepted and the audit holds."""
    parser = argparse.ArgumentParser(prog="loadtests.bench", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=8, help="length of one round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each target")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--ack", choices=("broker", "redis"), default="broker")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        print("wrk is missing: run `make bench`, which installs it, or `apt-get install wrk`", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="stockgate-bench-") as folder:
        result = asyncio.run(measure(arguments, Path(folder)))
    if arguments.json:
        print(json.dumps(result))
    else:
        for target, value in result["medians_per_s"].items():
            print(f"{target:18} {value:9,}/s (median of {arguments.rounds} rounds)")
        print(
            f"ack={result['ack']}: {result['ratio_spread']}x seed over {arguments.keys} keys, {result['ratio_hot']}x on one key"
        )
        print(f"audit {result['audit']}, {result['errors']} errors")
    return 0 if result["audit"] == "ok" and result["errors"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
