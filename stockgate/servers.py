"""Private Redis, MariaDB and RabbitMQ under one run directory, for development and for tests.

Every server has its own data, its own password and its own loopback ports, remembered in the run directory: servers of
the machine and of other checkouts are neither used nor disturbed. `start()` after `stop()` or `kill()` continues with
the data on the same ports. The objects are not bound to an event loop.

Each server has an owner, who may do all with our data (`url`: migrations, tests), and accounts for our processes, which
may do what `stockgate.accounts` says (`login`).
"""

import asyncio
import base64
import hashlib
import json
import os
import secrets
import shutil
import signal
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from stockgate.accounts import REDIS_RULE, REDIS_USER, ROLES, RoleName, with_login
from stockgate.passwords import Passwords
from stockgate.ports import LOOPBACK, Ports
from stockgate.processes import Child, Identity, StackError, end, log_tail, write_private

START_LIMIT_S = 60.0
_PROBE_LIMIT_S = 2.0
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/lib/rabbitmq/bin")


class ServerError(StackError):
    """A server that did not start or does not answer, with the end of its log."""


def find_program(name: str) -> str:
    """The path of a program that may live outside a plain user's PATH; raises StackError with what to do."""
    path = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *_SBIN)))
    if path is None:
        raise StackError(f"{name} is not installed: `make setup` installs it")
    return path


class Server(ABC):
    """What the three servers have in common: start, readiness by a real exchange, kill, stop."""

    name: str

    def __init__(self, run_dir: Path, *, config: Mapping[str, str] | None = None) -> None:
        self.config = dict(config or {})
        """Settings in the server's own words, over those that are made here."""
        self.run_dir = run_dir.absolute()
        self.directory = self.run_dir / self.name
        self.log_path = self.run_dir / "log" / f"{self.name}.log"
        self.ports = Ports(self.run_dir / "ports.json")
        self.passwords = Passwords(self.run_dir / "passwords.json")
        self._child = Child(self.name, self.log_path)
        self._port: int | None = None

    @property
    def port(self) -> int:
        """The port it listens on; stays the same as long as this object lives."""
        if self._port is None:
            self._port = self.ports.get(self.name)
        return self._port

    @property
    def pid(self) -> int | None:
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        return self._child.exit_code

    @property
    @abstractmethod
    def url(self) -> str:
        """Address with the owner's user and password, as the settings want it."""

    @abstractmethod
    def login(self, role: RoleName) -> tuple[str, str] | None:
        """User and password of one kind of process; None for one that does not speak to this server."""

    def alive(self) -> bool:
        return self._child.alive()

    async def start(self, limit_s: float = START_LIMIT_S) -> None:
        """Start and return when the server answers a real request; raises ServerError with the end of its log.

        A server that this run directory's last owner left behind is ended first: it holds the data.
        """
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._end_left_behind()
        try:
            await self._prepare()
            self._spawn()
            await self._until_ready(limit_s)
        except BaseException:
            await self.kill(signal.SIGKILL)
            raise

    async def stop(self, patience_s: float = 30.0) -> None:
        """Graceful, so that nothing has to be recovered; SIGKILL after `patience_s`."""
        await self._child.stop(patience_s)

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send any signal to the server's process; after SIGKILL return only when it is gone."""
        await self._child.kill(number)

    async def wait(self) -> int:
        """Wait until the server's process ends, whoever ended it."""
        return await self._child.wait()

    def wipe(self) -> None:
        """Throw the data away; the server must be stopped. The next `start()` begins empty on the same port."""
        if self.alive():
            raise StackError(f"{self.name} must be stopped before its data is thrown away")
        shutil.rmtree(self.directory, ignore_errors=True)

    @abstractmethod
    async def _prepare(self) -> None:
        """Write configuration; make the data folder on the first start."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The program and its arguments."""

    def _env(self) -> Mapping[str, str] | None:
        return None

    @abstractmethod
    async def _answers(self) -> bool:
        """One exchange over the real protocol, with login. False or OSError: not yet."""

    def _spawn(self) -> None:
        self._child.spawn(self._command(), env=self._env(), cwd=self.directory)
        identity = self._child.identity
        if identity:
            write_private(self._pid_path, f"{identity.pid} {identity.start_time}\n")

    @property
    def _pid_path(self) -> Path:
        return self.run_dir / f"{self.name}.pid"

    async def _end_left_behind(self) -> None:
        try:
            pid, start_time = self._pid_path.read_text().split()
        except (FileNotFoundError, ValueError):
            return
        left = Identity(int(pid), int(start_time))
        if left.alive():
            if self.alive() and left == self._child.identity:
                raise StackError(f"{self.name} is running already (pid {self.pid})")
            await end(left, 30.0)

    async def _until_ready(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            if not self.alive():
                raise ServerError(f"{self.name} ended with {self.exit_code} while starting:\n{log_tail(self.log_path)}")
            try:
                async with asyncio.timeout(_PROBE_LIMIT_S):
                    if await self._answers():
                        return
            except (OSError, EOFError, TimeoutError):
                pass
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{self.name} does not answer on {LOOPBACK}:{self.port} after {limit_s:.0f} s:\n"
                    f"{log_tail(self.log_path)}"
                )
            await asyncio.sleep(0.05)


class RedisServer(Server):
    """Append-only file on, no eviction; what tests vary is an argument, anything else goes in `config`.

    The default user is off. Passwords are kept as hashes in the access list, because CONFIG GET would show others.
    """

    name = "redis"
    owner = "admin"

    def __init__(
        self,
        run_dir: Path,
        *,
        appendonly: bool = True,
        appendfsync: Literal["always", "everysec", "no"] = "everysec",
        config: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(run_dir, config=config)
        self.appendonly = appendonly
        self.appendfsync = appendfsync

    @property
    def url(self) -> str:
        return f"redis://{self.owner}:{self.passwords.get(self.name)}@{LOOPBACK}:{self.port}/0"

    def login(self, role: RoleName) -> tuple[str, str] | None:
        return (REDIS_USER, self.passwords.get(f"{self.name}-{REDIS_USER}")) if ROLES[role].redis else None

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    def append_only_files(self) -> list[Path]:
        """The parts of the append-only file, oldest first; a test may shorten the last one while Redis is down."""
        return sorted((self.data_dir / "appendonlydir").glob("*.aof"), key=lambda part: part.stat().st_mtime_ns)

    async def _prepare(self) -> None:
        self.data_dir.mkdir(exist_ok=True)
        settings = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "dir": f'"{self.data_dir}"',
            "daemonize": "no",
            "save": '""',
            "appendonly": "yes" if self.appendonly else "no",
            "appendfsync": self.appendfsync,
            "no-appendfsync-on-rewrite": "no",
            "maxmemory": "1gb",
            "maxmemory-policy": "noeviction",
            "tcp-backlog": "128",
            "always-show-logo": "no",
            **self.config,
        }
        users = [
            # Off, so that nobody can log in as it, and yet it must be allowed all: Redis loads its file as this user, and
            # would drop each script's writes, which stand there between MULTI and EXEC.
            "default off ~* &* +@all",
            f"{self.owner} on {self._password_hash(self.name)} ~* &* +@all",
            f"{REDIS_USER} on {self._password_hash(f'{self.name}-{REDIS_USER}')} {' '.join(REDIS_RULE)}",
        ]
        lines = [*(f"{name} {value}" for name, value in settings.items()), *(f"user {user}" for user in users)]
        write_private(self.directory / "redis.conf", "".join(f"{line}\n" for line in lines))

    def _password_hash(self, name: str) -> str:
        return "#" + hashlib.sha256(self.passwords.get(name).encode()).hexdigest()

    def _command(self) -> list[str]:
        return [find_program("redis-server"), str(self.directory / "redis.conf")]

    async def _answers(self) -> bool:
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        try:
            writer.write(f"AUTH {self.owner} {self.passwords.get(self.name)}\r\nPING\r\n".encode())
            # While it loads its data it answers -LOADING to both.
            return await reader.readline() == b"+OK\r\n" and await reader.readline() == b"+PONG\r\n"
        finally:
            writer.close()


class MariaDBServer(Server):
    """Durable commits, READ COMMITTED, strict, UTC. `url` is the owner's account, `admin_url` may do all.

    The owner has every database whose name begins with its own, so that tests can make theirs, and migrates. The
    accounts of processes have nothing until `sql.grants` gives it to them in a database.
    """

    name = "mariadb"
    database = "stockgate"

    @property
    def url(self) -> str:
        return f"mysql://stockgate:{self.passwords.get('mariadb')}@{LOOPBACK}:{self.port}/{self.database}"

    def login(self, role: RoleName) -> tuple[str, str] | None:
        return ROLES[role].account, self.passwords.get(f"{self.name}-{role}")

    @property
    def admin_url(self) -> str:
        return f"mysql://admin:{self.passwords.get('mariadb-admin')}@{LOOPBACK}:{self.port}/{self.database}"

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def tmp_dir(self) -> Path:
        """Temporary tables."""
        return self.directory / "tmp"

    @property
    def _socket_path(self) -> Path:
        # The kernel allows 107 bytes; a deep checkout exceeds that.
        inside = self.directory / "mariadb.sock"
        return inside if len(os.fsencode(inside)) < 100 else Path(f"/tmp/stockgate-{os.getuid()}-{self.port}.sock")  # noqa: S108 -- a private folder below /tmp is not shorter in general

    async def _prepare(self) -> None:
        self._write_configuration()
        self.tmp_dir.mkdir(exist_ok=True)
        if not (self.data_dir / "mysql").is_dir() or not (self.directory / "installed").exists():
            await self._install()

    def _write_configuration(self) -> None:
        settings = {
            **({"user": "root"} if os.getuid() == 0 else {}),
            "datadir": str(self.data_dir),
            "socket": str(self._socket_path),
            "pid-file": str(self.directory / "mariadb.pid"),
            "init-file": str(self.directory / "accounts.sql"),
            "bind-address": LOOPBACK,
            "port": str(self.port),
            "skip-name-resolve": "1",
            "skip-log-bin": "1",
            "binlog-format": "ROW",
            "local-infile": "0",
            "character-set-server": "utf8mb4",
            "default-time-zone": "+00:00",
            "transaction-isolation": "READ-COMMITTED",
            "sql-mode": "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,"
            "NO_ENGINE_SUBSTITUTION,ONLY_FULL_GROUP_BY",
            "innodb-flush-log-at-trx-commit": "1",
            "innodb-lock-wait-timeout": "5",
            "idle-transaction-timeout": "3",
            "innodb-buffer-pool-size": "256M",
            "innodb-log-file-size": "128M",
            "max-allowed-packet": "64M",
            "max-connections": "200",
            "performance-schema": "OFF",
            # A server that starts takes temporary tables that lie where its own would for leftovers, and removes them.
            "tmpdir": str(self.tmp_dir),
            **self.config,
        }
        text = "[mariadbd]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())
        write_private(self.directory / "my.cnf", text)
        client = {"host": LOOPBACK, "port": self.port, "user": "admin", "password": self.passwords.get("mariadb-admin")}
        write_private(
            self.directory / "client.cnf",
            "[client]\n" + "".join(f"{name} = {value}\n" for name, value in client.items()),
        )
        # Runs at every start, before anybody can connect; one statement to a line.
        accounts = [
            f"CREATE DATABASE IF NOT EXISTS {self.database}",
            *self._account(f"'stockgate'@'{LOOPBACK}'", "mariadb"),
            f"GRANT ALL PRIVILEGES ON `{self.database}%`.* TO 'stockgate'@'{LOOPBACK}' WITH GRANT OPTION",
            *self._account(f"'admin'@'{LOOPBACK}'", "mariadb-admin"),
            f"GRANT ALL PRIVILEGES ON *.* TO 'admin'@'{LOOPBACK}' WITH GRANT OPTION",
            *(
                line
                for role in ROLES.values()
                for line in self._account(f"'{role.account}'@'%'", f"mariadb-{role.name}")
            ),
            # The installation makes passwordless ones, one of them for the machine's name.
            "DELETE FROM mysql.global_priv WHERE User = 'root'",
            "FLUSH PRIVILEGES",
        ]
        write_private(self.directory / "accounts.sql", "".join(f"{statement};\n" for statement in accounts))

    def _account(self, account: str, password: str) -> list[str]:
        return [
            f"CREATE USER IF NOT EXISTS {account}",
            f"ALTER USER {account} IDENTIFIED BY '{self.passwords.get(password)}'",
        ]

    async def _install(self) -> None:
        shutil.rmtree(self.data_dir, ignore_errors=True)
        install = Child("mariadb-install-db", self.log_path)
        # The script does not quote the path everywhere: it gets one that surely has no spaces.
        with TemporaryDirectory(prefix="stockgate-") as aside:
            plain = Path(aside) / "mariadb"
            plain.symlink_to(self.directory)
            install.spawn(
                [
                    find_program("mariadb-install-db"),
                    "--no-defaults",
                    f"--datadir={plain / self.data_dir.name}",
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                    "--skip-name-resolve",
                    # Nothing is lost if this is cut short: then it begins anew.
                    "--innodb-flush-log-at-trx-commit=0",
                    "--innodb-log-file-size=128M",
                    *(["--user=root"] if os.getuid() == 0 else []),
                ],
                cwd=self.directory,
                # The script hands no `--tmpdir` on.
                env={**os.environ, "TMPDIR": str(plain / self.tmp_dir.name)},
            )
            try:
                if await install.wait() != 0:
                    raise ServerError(f"mariadb-install-db failed:\n{log_tail(self.log_path)}")
            finally:
                await install.kill()
        (self.directory / "installed").touch()

    def _command(self) -> list[str]:
        return [find_program("mariadbd"), f"--defaults-file={self.directory / 'my.cnf'}"]

    async def execute(self, statement: str) -> str:
        """Run statements as the administrator through the command-line client; answers tab-separated rows."""
        client = await asyncio.create_subprocess_exec(
            find_program("mariadb"),
            f"--defaults-file={self.directory / 'client.cnf'}",
            "--batch",
            "--skip-column-names",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, error = await client.communicate(statement.encode())
        if client.returncode != 0:
            raise ServerError(f"mariadb: {error.decode().strip()}")
        return out.decode()

    async def _answers(self) -> bool:
        # Look at the door first: the client is a process of its own.
        _, writer = await asyncio.open_connection(LOOPBACK, self.port)
        writer.close()
        try:
            return (await self.execute("SELECT 1")).strip() == "1"
        except ServerError:
            return False


class RabbitServer(Server):
    """A node of its own with its own port mapper (epmd), cookie, users and virtual host.

    Erlang would start a port mapper that outlives it and is shared by the whole machine; ours is a child of ours.
    """

    name = "rabbitmq"
    user = "stockgate"
    vhost = "stockgate"

    def __init__(self, run_dir: Path, *, config: Mapping[str, str] | None = None) -> None:
        super().__init__(run_dir, config=config)
        self._port_mapper = Child("epmd", self.run_dir / "log" / "epmd.log")
        self._port_mapper_port: int | None = None
        self._distribution_port: int | None = None

    @property
    def url(self) -> str:
        return f"amqp://{self.user}:{self.passwords.get(self.name)}@{LOOPBACK}:{self.port}/{self.vhost}"

    def login(self, role: RoleName) -> tuple[str, str] | None:
        return (ROLES[role].account, self.passwords.get(f"{self.name}-{role}")) if ROLES[role].queue else None

    async def add_vhost(self, name: str) -> None:
        """Make a virtual host in which every account has the rights that it has in the first one."""
        path = self.directory / f"vhost-{name}.json"
        write_private(path, self._definitions(name))
        await self.ctl("import_definitions", str(path))

    async def stop(self, patience_s: float = 30.0) -> None:
        await super().stop(patience_s)
        await self._port_mapper.stop(5.0)

    async def start(self, limit_s: float = START_LIMIT_S) -> None:
        try:
            await super().start(limit_s)
        except BaseException:
            await self._port_mapper.kill()
            raise

    async def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node; takes about a second."""
        command = await asyncio.create_subprocess_exec(
            self._program("rabbitmqctl"),
            "--quiet",
            *arguments,
            env=self._env(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await command.communicate()
        if command.returncode != 0:
            raise ServerError(f"rabbitmqctl {' '.join(arguments)}: {out.decode().strip()}")
        return out.decode()

    async def _prepare(self) -> None:
        cookie = self.directory / ".erlang.cookie"
        if not cookie.exists():
            write_private(cookie, self.passwords.get("erlang-cookie"))
        settings = {
            "listeners.tcp.1": f"{LOOPBACK}:{self.port}",
            "default_user": self.user,
            "default_pass": self.passwords.get(self.name),
            "default_vhost": self.vhost,
            "default_user_tags.administrator": "true",
            "default_permissions.configure": ".*",
            "default_permissions.read": ".*",
            "default_permissions.write": ".*",
            "vm_memory_high_watermark.absolute": "1GB",
            "disk_free_limit.absolute": "100MB",
            # The write-ahead log of quorum queues is kept in memory as well: 512 MB of it by default.
            "raft.wal_max_size_bytes": "67108864",
            "log.console": "true",
            "log.console.level": "info",
            "log.file": "false",
            # Read at every start: rights that the code no longer needs are gone with it.
            "load_definitions": str(self.directory / "definitions.json"),
            **self.config,
        }
        text = "".join(f"{name} = {value}\n" for name, value in settings.items())
        write_private(self.directory / "rabbitmq.conf", text)
        write_private(self.directory / "definitions.json", self._definitions(self.vhost))
        write_private(self.directory / "enabled_plugins", "[].\n")
        write_private(self.directory / "rabbitmq-env.conf", "")
        if not self._port_mapper.alive():
            self._port_mapper_port = self._port_mapper_port or self.ports.get("epmd")
            command = [find_program("epmd"), "-address", LOOPBACK, "-port", str(self._port_mapper_port)]
            self._port_mapper.spawn(command, env=self._env(), cwd=self.directory)

    def _definitions(self, vhost: str) -> str:
        """Users and their rights in a virtual host, in the broker's own form."""
        rights = {role.account: role.queue for role in ROLES.values() if role.queue}
        logins = {self.user: self.name, **{ROLES[role].account: f"{self.name}-{role}" for role in ROLES}}
        users = [
            {
                "name": name,
                "password_hash": self._password_hash(self.passwords.get(logins[name])),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "administrator" if name == self.user else "",
            }
            for name in (self.user, *rights)
        ]
        all_rights = {self.user: {"configure": ".*", "write": ".*", "read": ".*"}}
        all_rights |= {name: asdict(right) for name, right in rights.items()}
        permissions = [{"user": name, "vhost": vhost, **right} for name, right in all_rights.items()]
        return json.dumps({"users": users, "vhosts": [{"name": vhost}], "permissions": permissions}, indent=2)

    @staticmethod
    def _password_hash(password: str) -> str:
        salt = secrets.token_bytes(4)
        return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()

    def _env(self) -> Mapping[str, str]:
        if self._distribution_port is None:
            self._distribution_port = self.ports.get("rabbitmq-distribution")
        if self._port_mapper_port is None:
            self._port_mapper_port = self.ports.get("epmd")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return {
            **inherited,
            "HOME": str(self.directory),
            "ERL_EPMD_PORT": str(self._port_mapper_port),
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_NODENAME": f"stockgate-{self._distribution_port}@localhost",
            "RABBITMQ_CONF_ENV_FILE": str(self.directory / "rabbitmq-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.directory / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.directory),
            "RABBITMQ_MNESIA_DIR": str(self.directory / "data"),
            "RABBITMQ_FEATURE_FLAGS_FILE": str(self.directory / "feature_flags"),
            "RABBITMQ_PLUGINS_EXPAND_DIR": str(self.directory / "plugins"),
            "RABBITMQ_PID_FILE": str(self.directory / "rabbitmq.pid"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +SDcpu 2:2 -start_epmd false "
            "-kernel inet_dist_use_interface {127,0,0,1}",
            # The script then becomes the server instead of watching over it, so that our signals reach it.
            "detached": "1",
        }

    @staticmethod
    def _program(name: str) -> str:
        # Not the ones in /usr/sbin: Debian's wrappers change to the system's rabbitmq user.
        wrapped = Path("/usr/lib/rabbitmq/bin") / name
        return str(wrapped) if wrapped.exists() else find_program(name)

    def _command(self) -> list[str]:
        return [self._program("rabbitmq-server")]

    async def _answers(self) -> bool:
        """Log in and open the virtual host, frame by frame as AMQP 0-9-1 has it."""
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)

        async def method() -> tuple[int, int]:
            _, _, size = struct.unpack(">BHI", await reader.readexactly(7))
            frame = await reader.readexactly(size + 1)
            return struct.unpack(">HH", frame[:4])

        def send(arguments: bytes, number: int) -> None:
            payload = struct.pack(">HH", 10, number) + arguments
            writer.write(struct.pack(">BHI", 1, 0, len(payload)) + payload + b"\xce")

        def short(text: str) -> bytes:
            return struct.pack(">B", len(text)) + text.encode()

        try:
            writer.write(b"AMQP\x00\x00\x09\x01")
            if await method() != (10, 10):  # start
                return False
            login = f"\0{self.user}\0{self.passwords.get(self.name)}".encode()
            send(struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", len(login)) + login + short("en_US"), 11)
            if await method() != (10, 30):  # tune
                return False
            send(struct.pack(">HIH", 1, 131_072, 0), 31)
            send(short(self.vhost) + short("") + b"\0", 40)
            opened = await method() == (10, 41)
            send(struct.pack(">H", 200) + short("") + struct.pack(">HH", 0, 0), 50)
            await method()
            return opened
        finally:
            writer.close()


class Servers:
    """The three servers of one run directory."""

    def __init__(self, run_dir: Path, *, appendfsync: Literal["always", "everysec", "no"] = "everysec") -> None:
        self.redis = RedisServer(run_dir, appendfsync=appendfsync)
        self.mariadb = MariaDBServer(run_dir)
        self.rabbitmq = RabbitServer(run_dir)

    def __iter__(self) -> Iterator[Server]:
        return iter((self.redis, self.mariadb, self.rabbitmq))

    def addresses(self) -> dict[str, str]:
        """The owner's URLs with user and password, by the names of `stack.json`."""
        return {"redis": self.redis.url, "mysql": self.mariadb.url, "amqp": self.rabbitmq.url}

    def role_addresses(self, role: RoleName) -> dict[str, str]:
        """The same for the account of one kind of process; without the servers that it does not speak to."""
        return self.as_role(role, self.addresses())

    def as_role(self, role: RoleName, urls: Mapping[str, str]) -> dict[str, str]:
        """Addresses at these servers, by the names of `stack.json`, with the logins of one kind of process."""
        servers: dict[str, Server] = {"redis": self.redis, "mysql": self.mariadb, "amqp": self.rabbitmq}
        logins = {name: servers[name].login(role) for name in urls}
        return {name: with_login(urls[name], *login) for name, login in logins.items() if login is not None}

    async def start(self) -> None:
        """Start all at once; if one fails the others are stopped again and its error is raised."""
        # Ports are chosen one after the other: side by side two servers could draw the same one.
        for server in self:
            _ = server.port
        results = await asyncio.gather(*(server.start() for server in self), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            await self.stop()
            raise failures[0]

    async def stop(self) -> None:
        await asyncio.gather(*(server.stop() for server in self))
