"""What it was measured on: cores, kernel, versions of servers and libraries, and how long the disk takes to be sure."""

import asyncio
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BLOCK_BYTES = 4_096
LIBRARIES = (
    *("uvicorn", "httptools", "uvloop", "starlette", "msgspec", "orjson"),
    *("redis", "hiredis", "asyncmy", "aio-pika", "aiormq"),
)
_PROGRAM_LIMIT_S = 20.0
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/rabbitmq/bin")


def probe_fsync(folder: Path, writes: int) -> dict[str, Any]:
    """Append 4 KiB and `fdatasync`, over and over, as a database's log does; microseconds of each such step."""
    took_us: list[float] = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix="fsync-") as file:
        block = os.urandom(BLOCK_BYTES)
        for _ in range(writes):
            began = time.perf_counter()
            os.write(file.fileno(), block)
            os.fdatasync(file.fileno())
            took_us.append(1e6 * (time.perf_counter() - began))
    took_us.sort()
    return {
        "writes": writes,
        "block_bytes": BLOCK_BYTES,
        "median_us": round(took_us[writes // 2]),
        "p99_us": round(took_us[min(writes - 1, writes * 99 // 100)]),
        "max_us": round(took_us[-1]),
    }


async def _output(*command: str) -> str:
    """What a program prints; raises FileNotFoundError or TimeoutError."""
    path = shutil.which(command[0], path=os.pathsep.join((os.environ["PATH"], *_SBIN)))
    if path is None:
        raise FileNotFoundError(f"{command[0]} is not installed")
    process = await asyncio.create_subprocess_exec(
        path, *command[1:], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    async with asyncio.timeout(_PROGRAM_LIMIT_S):
        out, _ = await process.communicate()
    return out.decode(errors="replace")


async def _version(*command: str, pattern: str = r"(\d+\.\d+[\w.~+:-]*)") -> str:
    found = re.search(pattern, await _output(*command))
    return found[1] if found else "unknown"


def _rabbitmq_version() -> str:
    # Its own programs need a running node or a second of Erlang; the folder bears the version.
    folders = sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
    return folders[-1].name.rpartition("-")[2] if folders else "unknown"


def _cpu_model() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def _file_system(folder: Path) -> str:
    """Type of the file system that holds the folder: the longest mount point above it."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    above = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above, key=lambda each: len(each[0]))[1]


async def describe_machine(folder: Path, cores: list[int], *, fsync_writes: int) -> dict[str, Any]:
    """The part of the bench; `folder` is where the servers keep their data."""
    commit = (await _output("git", "rev-parse", "--short=12", "HEAD")).strip()
    changed = bool((await _output("git", "status", "--porcelain", "--untracked-files=no")).strip())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit + (" with changes" if changed else ""),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_used": len(cores),
        "memory_mib": int(memory[1]) // 1024 if memory else 0,
        "kernel": platform.release(),
        "file_system": _file_system(folder),
        "load_average_1m": round(os.getloadavg()[0], 2),
        "fsync": await asyncio.to_thread(probe_fsync, folder, fsync_writes),
        "versions": {
            "Python": platform.python_version(),
            "Redis": await _version("redis-server", "--version", pattern=r"v=(\S+)"),
            "MariaDB": await _version("mariadbd", "--version", pattern=r"Ver (\S+)"),
            "RabbitMQ": _rabbitmq_version(),
            "wrk": await _version("wrk", "-v", pattern=r"wrk (\S+)"),
            **{name: importlib.metadata.version(name) for name in LIBRARIES},
        },
    }
