"""Free loopback ports, chosen once and remembered, so that a second start continues where clients expect it."""

import json
import random
import socket
from pathlib import Path

from stockgate.processes import StackError, write_private

LOOPBACK = "127.0.0.1"
_PORTS_FROM = 20_000
_TRIES = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # As servers do it: connections that wait in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _ephemeral_from() -> int:
    """Where the kernel's own range for outgoing connections begins."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32_768


def choose_port(avoid: set[int]) -> int:
    """A free port below the ephemeral range.

    Inside that range a client that keeps knocking at a server that is down can be given the server's own port for its
    outgoing end and be connected to itself; the server then cannot come back.
    """
    last = max(_ephemeral_from() - 1, _PORTS_FROM + 1_000)
    for _ in range(_TRIES):
        port = random.randint(_PORTS_FROM, last)
        if port not in avoid and is_free(port):
            return port
    raise StackError("no free loopback port was found")


class Ports:
    """The ports of one run directory, in its `ports.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, name: str) -> int:
        """The remembered port if it is still free, otherwise a new one, remembered from now on."""
        known = self._known()
        port = known.get(name)
        if port is None or not is_free(port):
            port = known[name] = choose_port(set(known.values()))
            write_private(self._path, json.dumps(known, indent=2) + "\n")
        return port

    def _known(self) -> dict[str, int]:
        try:
            return json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
