"""A Prometheus of one's own, beside a running stack: its configuration, its life, and what one asks it.

It listens on loopback, keeps little, and evaluates the alert rules of this folder. For a look at a stack, and for tests;
in production Prometheus is yours, and `prometheus/prometheus.yml.example` says what to tell it.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx2

from stockgate.ports import LOOPBACK, choose_port
from stockgate.processes import Child, StackError, log_tail, write_private
from stockgate.servers import find_program

ALERTS: Final = Path(__file__).parent / "prometheus" / "alerts.yml"

STORED_BYTES_MAX: Final = "256MB"
QUERY_LIMIT_S: Final = 10.0
START_LIMIT_S: Final = 30.0


@dataclass(frozen=True)
class Target:
    """One process to scrape. `job` names its kind (`stockgate-gateway`), `instance` itself."""

    job: str
    instance: str
    address: str
    """host:port"""


class Line(NamedTuple):
    """One series that a query gave: its labels, and (seconds, value) in order of time."""

    labels: Mapping[str, str]
    points: list[tuple[float, float]]


def targets_of(metrics: Mapping[str, str]) -> list[Target]:
    """The processes of a stack by what its `stack.json` says under `metrics`: name → URL."""
    targets: list[Target] = []
    for name, url in metrics.items():
        kind, _, number = name.rpartition("-")
        targets.append(Target(f"stockgate-{kind if number.isdigit() else name}", name, urlsplit(url).netloc))
    return targets


def read_stack(run_dir: Path) -> tuple[list[Target], str]:
    """Targets and the key for metrics of the stack that runs in `run_dir`; raises StackError if none does."""
    try:
        stack = json.loads((run_dir / "stack.json").read_text())
    except FileNotFoundError:
        raise StackError(f"no stack is running in {run_dir}: `stockgate up --detach --run-dir {run_dir}`") from None
    return targets_of(stack["metrics"]), json.loads(Path(stack["keys"]).read_text())["metrics"]


def configuration(targets: Sequence[Target], key: str, interval_ms: int) -> str:
    """Prometheus' configuration; JSON is YAML too."""
    jobs: dict[str, list[Target]] = {}
    for target in targets:
        jobs.setdefault(target.job, []).append(target)
    every = f"{interval_ms}ms"
    return json.dumps(
        {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [
                {
                    "job_name": job,
                    "authorization": {"type": "Bearer", "credentials": key},
                    "static_configs": [
                        {"targets": [target.address], "labels": {"instance": target.instance}} for target in members
                    ],
                }
                for job, members in jobs.items()
            ],
        },
        indent=2,
    )


class PrometheusServer:
    """Debian's Prometheus in a folder of its own, ended with this process however that ends."""

    def __init__(self, directory: Path, targets: Sequence[Target], key: str, *, interval_ms: int = 1_000) -> None:
        self._directory = directory.absolute()
        self._configuration = configuration(targets, key, interval_ms)
        self._child = Child("prometheus", self._directory / "prometheus.log")
        self.url = f"http://{LOOPBACK}:{choose_port(set())}"
        """Where its API and its pages are."""

    async def start(self) -> None:
        """Start it and return when it answers; raises StackError with the end of its log."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        # It holds the key.
        write_private(self._directory / "prometheus.yml", self._configuration)
        self._child.spawn(
            [
                find_program("prometheus"),
                f"--config.file={self._directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--storage.tsdb.retention.size={STORED_BYTES_MAX}",
                f"--web.listen-address={urlsplit(self.url).netloc}",
                f"--query.timeout={QUERY_LIMIT_S:.0f}s",
                "--log.level=warn",
            ]
        )
        try:
            async with asyncio.timeout(START_LIMIT_S), httpx2.AsyncClient(timeout=1.0) as client:
                while not await self._ready(client):
                    await asyncio.sleep(0.05)
        except BaseException as failure:
            await self._child.kill()
            if isinstance(failure, TimeoutError):
                log = log_tail(self._child.log_path)
                raise StackError(f"Prometheus does not answer after {START_LIMIT_S:.0f} s:\n{log}") from None
            raise

    async def _ready(self, client: httpx2.AsyncClient) -> bool:
        if not self._child.alive():
            raise StackError(f"Prometheus has ended while starting:\n{log_tail(self._child.log_path)}")
        try:
            return (await client.get(f"{self.url}/-/ready")).status_code == 200
        except httpx2.TransportError:
            return False

    async def stop(self) -> None:
        """End it."""
        await self._child.stop()


class Prometheus:
    """Questions to a Prometheus. Raises StackError where it refuses a question, httpx2.TransportError where it is away."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.AsyncClient(base_url=url, timeout=QUERY_LIMIT_S)

    async def close(self) -> None:
        """End its connections."""
        await self._client.aclose()

    async def ask(self, path: str, **parameters: Any) -> Any:
        """The `data` of one answer of the HTTP API below `/api/v1/`."""
        answer = (await self._client.get(f"/api/v1/{path}", params=parameters)).json()
        if answer["status"] != "success":
            raise StackError(f"Prometheus says of {parameters}: {answer['error']}")
        return answer["data"]

    async def now(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """The values of an instant query."""
        data = await self.ask("query", query=expression)
        return [(series["metric"], float(series["value"][1])) for series in data["result"]]

    async def over(self, expression: str, start: float, end: float, step: float) -> list[Line]:
        """The lines of a query from `start` to `end` (UTC seconds), a point every `step` seconds."""
        data = await self.ask("query_range", query=expression, start=start, end=end, step=step)
        return [
            Line(series["metric"], [(float(at), float(value)) for at, value in series["values"]])
            for series in data["result"]
        ]
