"""The supervisor with stub roles: a few lines of Python in place of each process."""

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stockgate.accounts import RoleName
from stockgate.ports import Ports, choose_port, is_free
from stockgate.processes import Child, Identity, StackError
from stockgate.stack import Member, Stack, StackOptions, down, http_get

STUB = """
import http.server, os, signal, socket, sys, time
role, arguments = sys.argv[1], sys.argv[2:]
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(role, "speaks", flush=True)
if role == "migrate":
    sys.exit(0)
if role in os.environ.get("STUB_FAILS", "").split(","):
    print(role, "has a reason", flush=True)
    sys.exit(7)
if role != "gateway":
    while True:
        time.sleep(60)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())
    def log_message(self, *_): pass
class Server(http.server.HTTPServer):
    def __init__(self, listener):
        super().__init__(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()
listener = socket.socket(fileno=int(arguments[1]))
listener.setblocking(True)
Server(listener).serve_forever()
"""


class NoServers:
    def __iter__(self) -> Iterator[Member]:
        return iter(())

    def addresses(self) -> dict[str, str]:
        return {"redis": "redis://none", "mysql": "mysql://none", "amqp": "amqp://none"}

    def role_addresses(self, role: RoleName) -> dict[str, str]:
        return {"mysql": f"mysql://{role}"}

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Running:
    """A stack with stub roles, and what it said."""

    def __init__(self, run_dir: Path, stack: Stack, said: list[str]) -> None:
        self.run_dir = run_dir
        self.stack = stack
        self.said = said

    def described(self) -> dict[str, object]:
        return json.loads((self.run_dir / "stack.json").read_text())

    def pids(self) -> dict[str, int]:
        processes = self.described()["processes"]
        assert isinstance(processes, list)
        return {process["name"]: process["pid"] for process in processes}

    @property
    def port(self) -> int:
        return int(str(self.described()["gateway"]).rpartition(":")[2])


async def until(condition: Callable[[], bool], limit_s: float = 15.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.02)


def make_stack(run_dir: Path, said: list[str], **options: object) -> Stack:
    stub = run_dir.parent / "stub.py"
    stub.write_text(STUB)

    def command(role: str, *arguments: str) -> list[str]:
        return [sys.executable, str(stub), role, *arguments]

    return Stack(
        StackOptions(run_dir=run_dir, **({"port": choose_port(set())} | options)),  # pyright: ignore[reportArgumentType]
        servers=NoServers(),
        command=command,
        say=said.append,
    )


@asynccontextmanager
async def running(run_dir: Path) -> AsyncGenerator[Running]:
    said: list[str] = []
    stack = make_stack(run_dir, said)
    async with asyncio.TaskGroup() as group:
        life = group.create_task(stack.run())
        await until(lambda: any(line.startswith("ready") for line in said) or life.done())
        try:
            yield Running(run_dir, stack, said)
        finally:
            stack.request_stop()
    assert life.result() == 0


async def test_describes_itself_and_stops_everything(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    async with running(run_dir) as stack:
        described = stack.described()
        assert described.keys() == {
            "gateway",
            "keys",
            "redis",
            "mysql",
            "amqp",
            "operator",
            "operators",
            "processes",
            "metrics",
        }
        assert set(stack.pids()) == {"gateway-1", "gateway-2", "persist-worker", "reconciler"}
        keys = json.loads(Path(str(described["keys"])).read_text())
        assert set(keys) == {"orders", "inventory", "ops", "metrics"}
        for name in ("stack.json", "keys.json", "api_keys.json"):
            assert stat.S_IMODE((run_dir / name).stat().st_mode) == 0o600
        assert not any(key in (run_dir / "api_keys.json").read_text() for key in keys.values())
        identities = [Identity.of(pid) for pid in stack.pids().values()]
        port = stack.port
    assert not any(identity.alive() for identity in identities if identity)
    assert not (run_dir / "stack.json").exists()
    assert is_free(port)
    async with running(run_dir) as again:
        assert json.loads(Path(str(again.described()["keys"])).read_text()) == keys


async def test_killing_a_gateway_refuses_nobody_and_it_comes_back(tmp_path: Path) -> None:
    async with running(tmp_path / "run") as stack:
        before = stack.pids()
        log = tmp_path / "run" / "log" / "gateway-1.log"
        await until(lambda: "speaks" in log.read_text())
        os.kill(before["gateway-1"], signal.SIGKILL)
        for _ in range(100):
            status, _ = await http_get(stack.port, "/health/ready")
            assert status == 200
        await until(lambda: stack.pids().get("gateway-1", before["gateway-1"]) != before["gateway-1"])
        assert stack.pids()["gateway-2"] == before["gateway-2"]
        told = "\n".join(stack.said)
        assert "gateway-1 was killed by SIGKILL" in told
        assert "gateway speaks" in told, "the end of its log"


async def test_a_second_stack_in_the_same_place_is_refused_with_the_first_one_named(tmp_path: Path) -> None:
    async with running(tmp_path / "run") as stack:
        with pytest.raises(StackError, match=rf"already running .*pid {os.getpid()}, http://127.0.0.1:{stack.port}"):
            await make_stack(tmp_path / "run", []).run()
        assert stack.described()["processes"], "the first one is not disturbed"


async def test_two_stacks_side_by_side(tmp_path: Path) -> None:
    async with running(tmp_path / "one") as one, running(tmp_path / "two") as two:
        assert one.port != two.port
        assert not set(one.pids().values()) & set(two.pids().values())


async def test_a_taken_port_is_named_with_the_way_out(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port} cannot be used .*--port"):
            await make_stack(tmp_path / "run", [], port=port).run()


async def test_a_role_that_cannot_start_is_named_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_FAILS", "gateway")
    with pytest.raises(StackError, match=r"(?s)gateway-\d ended with exit code 7.*gateway has a reason.*died 4 times"):
        await make_stack(tmp_path / "run", []).run()
    assert not (tmp_path / "run" / "supervisor.json").exists()


async def test_down_ends_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    left = Child("left", tmp_path / "left.log")
    left.spawn([sys.executable, "-c", "import time; time.sleep(300)"])
    assert left.identity
    gone = {"pid": os.getpid(), "start_time": 1, "state": "ready", "gateway": "http://127.0.0.1:1"}
    children = [[left.identity.pid, left.identity.start_time], [os.getpid(), 1]]
    (tmp_path / "supervisor.json").write_text(json.dumps({**gone, "children": children}))
    said: list[str] = []
    assert await down(tmp_path, said.append) == 0
    assert not left.alive(), "and this process lives on: its start time is another one"
    assert "died" in said[-1]
    assert await down(tmp_path, said.append) == 0


def test_ports_are_remembered_while_they_are_free(tmp_path: Path) -> None:
    port = Ports(tmp_path / "ports.json").get("redis")
    assert Ports(tmp_path / "ports.json").get("redis") == port
    assert Ports(tmp_path / "ports.json").get("mariadb") != port
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert Ports(tmp_path / "ports.json").get("redis") != port
