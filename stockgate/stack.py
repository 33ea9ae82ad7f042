"""The development stack: starts servers and roles, keeps them alive, describes itself, stops in order.

    servers → migrate → gateways (one shared listening socket), persist worker, reconciler

What the run directory holds, readable by its owner alone: `stack.json` (with the logins of the servers' owner, and of the
operator whom the command line speaks for) and `keys.json` for clients, `supervisor.json` for `up` and `down`, `log/`,
and the servers' data, which outlives the stack.
"""

import asyncio
import fcntl
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol

from stockgate.accounts import RoleName
from stockgate.keys import ensure_keys
from stockgate.ports import LOOPBACK, Ports, is_free
from stockgate.processes import Child, Identity, StackError, end, log_tail, write_private
from stockgate.servers import Servers

PORT_DEFAULT: Final = 8080
MIGRATE_LIMIT_S: Final = 120.0
READY_LIMIT_S: Final = 90.0
DETACH_LIMIT_S: Final = 240.0
STOP_PATIENCE_S: Final = 20.0
RESTART_DELAY_S: Final = 0.2
RESTART_DELAY_MAX_S: Final = 5.0
STEADY_AFTER_S: Final = 30.0
"""A process that lived this long was healthy: its next death is a first one again."""
STARTUP_DEATHS_MAX: Final = 4

ADDRESS_SETTINGS: Final = {
    "redis": "STOCKGATE_REDIS_URL",
    "mysql": "STOCKGATE_MYSQL_URL",
    "amqp": "STOCKGATE_AMQP_URL",
}

BACKGROUND_ROLES: Final[tuple[RoleName, ...]] = ("persist-worker", "reconciler")

Say = Callable[[str], None]


@dataclass(frozen=True)
class StackOptions:
    run_dir: Path = Path(".run")
    port: int | None = None
    gateways: int = 2
    ack: Literal["broker", "redis"] = "broker"
    ready_limit_s: float = READY_LIMIT_S
    operators_port: int | None = None
    """Where operators are answered and nobody else; None = where all are."""


class Member(Protocol):
    """One process of the stack: a server or a role."""

    @property
    def name(self) -> str: ...
    @property
    def log_path(self) -> Path: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def exit_code(self) -> int | None: ...
    async def start(self) -> None: ...
    async def stop(self, patience_s: float = ...) -> None: ...
    async def wait(self) -> int: ...


class ServerGroup(Protocol):
    def __iter__(self) -> Iterator[Member]: ...
    def addresses(self) -> dict[str, str]: ...
    def role_addresses(self, role: RoleName) -> dict[str, str]: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Role(Child):
    """A process of ours; may be started again and again."""

    def __init__(
        self, name: str, log_path: Path, command: Sequence[str], env: Mapping[str, str], fds: Sequence[int] = ()
    ) -> None:
        super().__init__(name, log_path)
        self._command = command
        self.env = env
        self._fds = fds

    async def start(self) -> None:
        self.spawn(self._command, env=self.env, pass_fds=self._fds)


def role_command(role: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "stockgate", role, *arguments]


def print_line(text: str) -> None:
    print(text, flush=True)


def how_it_ended(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


async def http_get(port: int, path: str) -> tuple[int, str]:
    """Status and body of a GET on loopback; raises OSError or EOFError when there is no proper answer."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {LOOPBACK}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read(65_536)).partition(b"\r\n\r\n")
        fields = head.split(b" ", 2)
        if len(fields) < 2 or not fields[1].isdigit():
            raise EOFError("no HTTP answer")
        return int(fields[1]), (body + await reader.read(65_536)).decode(errors="replace")
    finally:
        writer.close()


class Stack:
    """One development stack in one run directory; `run()` is its whole life."""

    def __init__(
        self,
        options: StackOptions,
        *,
        servers: ServerGroup | None = None,
        command: Callable[..., list[str]] = role_command,
        say: Say = print_line,
    ) -> None:
        self._options = options
        self._run_dir = options.run_dir
        self._servers = servers or Servers(options.run_dir)
        self._command = command
        self._say = say
        self._roles: list[Role] = []
        self._state = "starting"
        self._gateway = ""
        self._operators = ""
        self._stop_wanted = asyncio.Event()

    def request_stop(self) -> None:
        """What Ctrl-C and SIGTERM do."""
        self._stop_wanted.set()

    async def run(self) -> int:
        """Start, stay, stop. Answers the exit code; raises StackError when it cannot start."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        with locked(self._run_dir):
            for number in signals:
                loop.add_signal_handler(number, self.request_stop)
            try:
                await end_leftovers(self._run_dir)
                await self._until_stop(self._live)
            finally:
                await self._stop()
                for number in signals:
                    loop.remove_signal_handler(number)
        return 0

    async def _until_stop(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Do the work until it fails or a stop is wanted."""
        with first_error():
            async with asyncio.TaskGroup() as group:
                working = group.create_task(work())
                await self._stop_wanted.wait()
                working.cancel()

    async def _live(self) -> None:
        with ExitStack() as sockets:
            listener = sockets.enter_context(listening_socket(self._run_dir, self._options.port, self._say))
            operators: socket.socket | None = None
            if self._options.operators_port is not None:
                operators = sockets.enter_context(
                    listening_socket(self._run_dir, self._options.operators_port, self._say)
                )
                self._operators = f"http://{LOOPBACK}:{operators.getsockname()[1]}"
            port = listener.getsockname()[1]
            self._gateway = f"http://{LOOPBACK}:{port}"
            api_keys = ensure_keys(self._run_dir)
            self._describe()
            self._say("starting Redis, MariaDB and RabbitMQ")
            await self._servers.start()
            self._say("migrating the database")
            await self._migrate(self._environment(api_keys, {"mysql": self._servers.addresses()["mysql"]}))
            self._roles = self._make_roles(api_keys, listener, operators)
            self._say(f"starting {', '.join(role.name for role in self._roles)}")
            for role in self._roles:
                await role.start()
            self._describe()
            with first_error():
                async with asyncio.TaskGroup() as group:
                    for member in (*self._servers, *self._roles):
                        group.create_task(self._watch(member))
                    group.create_task(self._announce_when_ready(port))

    def _environment(self, api_keys: Path, addresses: Mapping[str, str]) -> dict[str, str]:
        """What a process of ours is told: the servers that it speaks to, as who it is there, and no others."""
        inherited = {name: value for name, value in os.environ.items() if name not in ADDRESS_SETTINGS.values()}
        return {
            "STOCKGATE_LOG_JSON": "true",
            **inherited,
            "PYTHONUNBUFFERED": "1",
            "STOCKGATE_API_KEYS_FILE": str(api_keys.absolute()),
            "STOCKGATE_ACK": self._options.ack,
            **{ADDRESS_SETTINGS[name]: url for name, url in addresses.items()},
        }

    def _log(self, name: str) -> Path:
        return self._run_dir / "log" / f"{name}.log"

    async def _migrate(self, env: Mapping[str, str]) -> None:
        migrate = Child("migrate", self._log("migrate"))
        migrate.spawn(self._command("migrate", "--grants"), env=env)
        try:
            async with asyncio.timeout(MIGRATE_LIMIT_S):
                exit_code = await migrate.wait()
        except TimeoutError:
            raise StackError(
                f"migrate is not done after {MIGRATE_LIMIT_S:.0f} s:\n{log_tail(migrate.log_path)}"
            ) from None
        finally:
            await migrate.kill()
        if exit_code != 0:
            raise StackError(f"migrate {how_it_ended(exit_code)}:\n{log_tail(migrate.log_path)}")

    def _make_roles(self, api_keys: Path, listener: socket.socket, operators: socket.socket | None) -> list[Role]:
        # All gateways accept from one socket that outlives each of them: killing one refuses nobody.
        fds = {"--fd": listener.fileno()}
        if operators is not None:
            fds["--operators-fd"] = operators.fileno()
        command = self._command("gateway", *(word for name, fd in fds.items() for word in (name, str(fd))))
        env = self._environment(api_keys, self._servers.role_addresses("gateway"))
        gateways = [
            Role(name, self._log(name), command, env | self._metrics_port(name), tuple(fds.values()))
            for name in (f"gateway-{number}" for number in range(1, self._options.gateways + 1))
        ]
        others: list[Role] = []
        for name in BACKGROUND_ROLES:
            env = self._environment(api_keys, self._servers.role_addresses(name))
            others.append(Role(name, self._log(name), self._command(name), env | self._metrics_port(name)))
        return [*gateways, *others]

    def _metrics_port(self, name: str) -> dict[str, str]:
        """Where this process alone serves `/metrics` and `/health`: on their common port gateways answer in turn."""
        return {"STOCKGATE_METRICS_PORT": str(Ports(self._run_dir / "ports.json").get(f"{name}-metrics"))}

    async def _watch(self, member: Member) -> None:
        """Start a process again whenever it dies, sooner the longer it had lived."""
        deaths = 0
        while True:
            since = time.monotonic()
            await member.wait()
            deaths = 1 if time.monotonic() - since > STEADY_AFTER_S else deaths + 1
            story = f"{member.name} {how_it_ended(member.exit_code)}; the end of {member.log_path}:\n" + log_tail(
                member.log_path
            )
            if self._state == "starting" and deaths >= STARTUP_DEATHS_MAX:
                raise StackError(f"{story}\n{member.name} died {deaths} times before the stack was ready")
            self._say(story)
            self._describe()
            await asyncio.sleep(min(RESTART_DELAY_S * 2 ** (deaths - 1), RESTART_DELAY_MAX_S))
            try:
                await member.start()
            except StackError as error:
                self._say(f"{member.name} did not start again: {error}")
                continue
            self._say(f"{member.name} was started again (pid {member.pid})")
            self._describe()

    async def _announce_when_ready(self, port: int) -> None:
        deadline = time.monotonic() + self._options.ready_limit_s
        last = "no answer"
        while True:
            try:
                async with asyncio.timeout(2.0):
                    status, body = await http_get(port, "/health/ready")
                if status == 200:
                    break
                last = f"{status} {body[:500]}"
            except (OSError, EOFError, TimeoutError) as error:
                last = f"no answer ({error or type(error).__name__})"
            if time.monotonic() > deadline:
                raise StackError(
                    f"not ready after {self._options.ready_limit_s:.0f} s; /health/ready says: {last}\n"
                    f"the end of {self._roles[0].log_path}:\n{log_tail(self._roles[0].log_path)}"
                )
            await asyncio.sleep(0.1)
        self._state = "ready"
        self._describe()
        self._say(f"ready: {self._gateway}  (keys: {self._run_dir / 'keys.json'}, logs: {self._run_dir / 'log'})")

    def _describe(self) -> None:
        """Bring `stack.json` and `supervisor.json` up to date."""
        members = [member for member in (*self._servers, *self._roles) if member.pid]
        if self._roles:
            stack = {
                "gateway": self._gateway,
                # Where /ops and /metrics are answered.
                "operators": self._operators or self._gateway,
                "keys": str(self._run_dir / "keys.json"),
                **self._servers.addresses(),
                "operator": self._servers.role_addresses("operator"),
                "processes": [{"name": m.name, "pid": m.pid, "log": str(m.log_path)} for m in members],
                "metrics": {
                    name: f"http://{LOOPBACK}:{environment['STOCKGATE_METRICS_PORT']}/metrics"
                    for name, environment in ((role.name, role.env) for role in self._roles)
                    if "STOCKGATE_METRICS_PORT" in environment
                },
            }
            write_private(self._run_dir / "stack.json", json.dumps(stack, indent=2) + "\n")
        own = Identity.of(os.getpid())
        children = [Identity.of(member.pid) for member in members if member.pid]
        supervisor = {
            "pid": os.getpid(),
            "start_time": own.start_time if own else 0,
            "state": self._state,
            "gateway": self._gateway,
            "children": [[child.pid, child.start_time] for child in children if child],
        }
        write_private(self._run_dir / "supervisor.json", json.dumps(supervisor, indent=2) + "\n")

    async def _stop(self) -> None:
        """Gateways finish what they accepted, then those that carry it on, then the servers with the data."""
        self._state = "stopping"
        self._say("stopping")
        gateways = [role for role in self._roles if role.name.startswith("gateway")]
        others = [role for role in self._roles if role not in gateways]
        for group in (gateways, others):
            await asyncio.gather(*(role.stop(STOP_PATIENCE_S) for role in group))
        await self._servers.stop()
        (self._run_dir / "stack.json").unlink(missing_ok=True)
        (self._run_dir / "supervisor.json").unlink(missing_ok=True)
        self._say("stopped")


@contextmanager
def first_error() -> Generator[None]:
    """Raise the first error of a task group itself: here each one already tells its whole story."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


@contextmanager
def locked(run_dir: Path) -> Generator[None]:
    """Hold the run directory; raises StackError when another stack does. The kernel lets go when we die."""
    with (run_dir / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            running = Supervisor.read(run_dir)
            where = f" (pid {running.identity.pid}, {running.gateway})" if running else ""
            raise StackError(
                f"a stack is already running in {run_dir}{where}: "
                "`stockgate down` stops it, --run-dir starts another one elsewhere"
            ) from None
        yield


@contextmanager
def listening_socket(run_dir: Path, wanted: int | None, say: Say) -> Generator[socket.socket]:
    """The gateways' common socket, on the wanted port, or for None on the default one or a free one."""
    port = PORT_DEFAULT if wanted is None else wanted
    if wanted is None and not is_free(port):
        port = Ports(run_dir / "ports.json").get("gateway")
        say(f"port {PORT_DEFAULT} is taken by something else: using {port} (choose one with --port)")
    listener = socket.socket()
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
            listener.listen(2048)
        except OSError as error:
            raise StackError(f"port {port} cannot be used ({error.strerror}): choose another one with --port") from None
        listener.setblocking(False)
        yield listener


@dataclass(frozen=True)
class Supervisor:
    """What `supervisor.json` says about the process that holds a run directory."""

    identity: Identity
    state: str
    gateway: str
    children: tuple[Identity, ...]

    @classmethod
    def read(cls, run_dir: Path) -> "Supervisor | None":
        try:
            said = json.loads((run_dir / "supervisor.json").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return cls(
            Identity(said["pid"], said["start_time"]),
            said["state"],
            said["gateway"],
            tuple(Identity(pid, start_time) for pid, start_time in said["children"]),
        )


async def end_leftovers(run_dir: Path) -> None:
    """End what a supervisor that was killed left behind: its children, known by pid and start time."""
    before = Supervisor.read(run_dir)
    if before and not before.identity.alive():
        await asyncio.gather(*(end(child, STOP_PATIENCE_S) for child in before.children))
        (run_dir / "supervisor.json").unlink(missing_ok=True)
        (run_dir / "stack.json").unlink(missing_ok=True)


async def down(run_dir: Path, say: Say = print_line) -> int:
    """Stop the stack of a run directory; 0 also when none is running."""
    running = Supervisor.read(run_dir)
    if running is None:
        say(f"no stack is running in {run_dir}")
        return 0
    if not running.identity.alive():
        await end_leftovers(run_dir)
        say(f"the stack in {run_dir} had died; what it left is ended")
        return 0
    await end(running.identity, 3 * STOP_PATIENCE_S + 30.0)
    await end_leftovers(run_dir)
    say(f"the stack in {run_dir} is stopped; its data is kept")
    return 0


async def up_detached(options: StackOptions, say: Say = print_line) -> int:
    """Start a supervisor of its own, relay what it says, return when it is ready or has failed."""
    run_dir = options.run_dir
    run_dir.mkdir(parents=True, exist_ok=True)
    with locked(run_dir):
        pass
    arguments = ["--run-dir", str(run_dir), "--gateways", str(options.gateways), "--ack", options.ack]
    if options.port is not None:
        arguments += ["--port", str(options.port)]
    if options.operators_port is not None:
        arguments += ["--operators-port", str(options.operators_port)]
    log_path = run_dir / "log" / "stockgate.log"
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_bytes(b"")
    with log_path.open("ab") as log:
        supervisor = await asyncio.create_subprocess_exec(
            *role_command("up", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + DETACH_LIMIT_S
    try:
        with log_path.open() as said:
            while True:
                state = Supervisor.read(run_dir)
                for line in said:
                    say(line.rstrip("\n"))
                if supervisor.returncode is not None:
                    return supervisor.returncode or 1
                if state and state.identity.pid == supervisor.pid and state.state == "ready":
                    break
                if time.monotonic() > deadline:
                    raise StackError(f"not ready after {DETACH_LIMIT_S:.0f} s, see {log_path}")
                await asyncio.sleep(0.1)
    except BaseException:
        supervisor.terminate()
        await supervisor.wait()
        raise
    place = "" if run_dir == Path(".run") else f" --run-dir {run_dir}"
    say(f"it runs in the background: `stockgate demo{place}` uses it, `stockgate down{place}` stops it")
    return 0
