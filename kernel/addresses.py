"""What an address of a server may look like: known, safe to log in at, and without words that weaken it."""

import ipaddress
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

ENCRYPTED: Final = frozenset({"rediss", "mysqls", "amqps"})
"""Schemes of addresses that are encrypted; see `kernel.tls`."""

_SCHEMES: Final = {
    "redis_url": ("redis", "rediss", "unix"),
    "mysql_url": ("mysql", "mysqls"),
    "amqp_url": ("amqp", "amqps"),
}
_DEFAULT_LOGIN: Final = "guest"


def check_address(setting: str, url: str) -> None:
    """Raise ValueError, which names the setting and never the address, where it must not be used.

    Off this machine a default login is open to whoever finds the port: no password, or RabbitMQ's guest.
    """
    name = f"STOCKGATE_{setting.upper()}"
    parts = urlsplit(url)
    schemes = _SCHEMES[setting]
    if parts.scheme not in schemes:
        raise ValueError(f"{name} must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    weakening = sorted(
        word for word in parse_qs(parts.query) if "ssl" in word or word.endswith(("file", "path", "data"))
    )
    if weakening:
        raise ValueError(f"{name}: {', '.join(weakening)}: certificates are set by STOCKGATE_TLS_CA_FILE and its kin")
    if is_loopback(parts.hostname):
        return
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if not password:
        raise ValueError(f"{name} has no password, and its server is not on this machine")
    if setting == "amqp_url" and _DEFAULT_LOGIN in {user, password}:
        raise ValueError(f"{name} logs in as guest, and its server is not on this machine")


def is_loopback(host: str | None) -> bool:
    """Whether a host is this machine; None, as for a Unix socket, is."""
    if host is None or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
