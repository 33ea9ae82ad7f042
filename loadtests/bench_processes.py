"""What processes cost: CPU time and resident memory, read from /proc, by the names that the stack gives them."""

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def stay_on_cores(count: int) -> list[int]:
    """Bind this process, and with it all that it starts, to the first `count` cores it may use; answers them.

    Raises ValueError where there are fewer.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < count:
        raise ValueError(f"{count} cores are wanted and {len(allowed)} may be used")
    os.sched_setaffinity(0, allowed[:count])
    return allowed[:count]


def _stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on; None where the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses, and may hold anything.
    return stat.rpartition(")")[2].split()


def _trees(roots: Mapping[str, int]) -> dict[str, list[int]]:
    """The pids of each root process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (fields := _stat_fields(int(folder.name))):
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    trees: dict[str, list[int]] = {}
    for name, root in roots.items():
        tree = [root]
        for pid in tree:
            tree.extend(children.get(pid, ()))
        trees[name] = tree
    return trees


def _cpu_s(pid: int) -> float:
    """User and kernel time of a process, with that of its children that have ended."""
    fields = _stat_fields(pid)
    return TICK_S * sum(map(int, fields[11:15])) if fields else 0.0


def resident_mb(roots: Mapping[str, int]) -> dict[str, float]:
    """Resident memory of each process and its descendants, in MB (10^6 bytes); shared pages count in each."""
    found: dict[str, float] = {}
    for name, pids in _trees(roots).items():
        pages = 0
        for pid in pids:
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
        found[name] = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return found


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU seconds since their start of the named processes, of children of ours that have ended, of the machine."""

    by_name: dict[str, float]
    ended_children: float
    machine_busy: float
    """All that ran on any core, ours or not."""
    machine_stolen: float
    """What the hypervisor gave to others."""

    @classmethod
    def take(cls, roots: Mapping[str, int]) -> "CpuReading":
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        user, nice, system, _, _, irq, soft, stolen = (
            TICK_S * int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
        return cls(
            {name: sum(map(_cpu_s, pids)) for name, pids in _trees(roots).items()},
            usage.ru_utime + usage.ru_stime,
            user + nice + system + irq + soft,
            stolen,
        )

    def since(self, before: "CpuReading") -> "CpuReading":
        """What was spent between two readings."""
        return CpuReading(
            {name: spent - before.by_name.get(name, 0.0) for name, spent in self.by_name.items()},
            self.ended_children - before.ended_children,
            self.machine_busy - before.machine_busy,
            self.machine_stolen - before.machine_stolen,
        )
