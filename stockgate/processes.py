"""Starting and ending child processes of the development stack: by pid and start time, with a log, never by name."""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.02


class StackError(Exception):
    """Something of the stack could not be started or stopped; the message is written for a person."""


@dataclass(frozen=True)
class Identity:
    """A process for ever: pids are used again, a pid with its start time is not.

    `start_time` is in clock ticks since boot, field 22 of /proc/PID/stat.
    """

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Who has this pid now; None if nobody, or only a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The second field is the program's name in parentheses, and may hold anything.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in {"Z", "X"} else cls(pid, int(fields[19]))

    def alive(self) -> bool:
        return Identity.of(self.pid) == self

    def send(self, number: signal.Signals) -> None:
        """Send a signal unless the process is gone or the pid is somebody else's by now."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


async def end(process: Identity, patience_s: float) -> None:
    """Ask a process to end, then end it. Continues a stopped one, so that it can hear."""
    process.send(signal.SIGTERM)
    process.send(signal.SIGCONT)
    if not await ended(process, patience_s):
        process.send(signal.SIGKILL)
        await ended(process, patience_s)


async def ended(process: Identity, limit_s: float) -> bool:
    """Wait until a process is gone; False when it still lives after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while process.alive():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_S)
    return True


def log_tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, indented; reads at most its last 16 KiB."""
    try:
        with path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - 16_384))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        text = ""
    return "\n".join("    " + line for line in text.splitlines()[-lines:]) or "    (the log is empty)"


def write_private(path: Path, text: str) -> None:
    """Replace a file as a whole, readable by its owner alone, so that readers see the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    aside.replace(path)


class Child:
    """One child process with a log. Not bound to an event loop, so that tests may share it between loops.

    It gets a session of its own (Ctrl-C in the terminal reaches only us, and we stop things in order) and ends when
    we die, however we die.
    """

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._identity: Identity | None = None

    @property
    def pid(self) -> int | None:
        """The pid while the process lives, otherwise None."""
        return self._process.pid if self._process and self.alive() else None

    @property
    def identity(self) -> Identity | None:
        return self._identity

    @property
    def exit_code(self) -> int | None:
        """How the last run ended: negative = by that signal; None while it lives or before it was started."""
        return self._process.poll() if self._process else None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start the program; raises StackError if it cannot be executed.

        To be called from a thread that stays: the kernel ends the child with the thread that started it.
        """
        if self.alive():
            raise StackError(f"{self.name} is running already (pid {self.pid})")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        setpriv = shutil.which("setpriv")
        with_parent = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
        try:
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [*with_parent, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=env,
                    cwd=cwd,
                    pass_fds=pass_fds,
                    start_new_session=True,
                )
        except OSError as error:
            raise StackError(f"{self.name} could not be started: {error}") from error
        self._identity = Identity.of(self._process.pid)

    async def wait(self) -> int:
        """Wait until the process ends; answers its exit code."""
        while self.alive():
            await asyncio.sleep(POLL_S)
        return self.exit_code or 0

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; after SIGKILL return only when the process is gone."""
        if self._process is None or not self.alive():
            return
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            await self.wait()

    async def stop(self, patience_s: float = 20.0) -> None:
        """SIGTERM, and SIGKILL for one that does not end within `patience_s`."""
        await self.kill(signal.SIGTERM)
        await self.kill(signal.SIGCONT)
        try:
            async with asyncio.timeout(patience_s):
                await self.wait()
        except TimeoutError:
            await self.kill(signal.SIGKILL)
