"""Who asks: API keys from a file of hashes that may change while we run, with a limit on requests for each.

The file is JSON, a list of `{"name", "tenant", "scopes": […], "sha256", "prefix"?, "rate_per_s"?, "burst"?, "expires_at"?}`.
Keys are random and long, so a plain SHA-256 of one says nothing about it. Rotation: add the new key, wait until callers
use it, take out the old one; the name may be the same.
"""

import hashlib
import hmac
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import msgspec

from kernel import limits
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.logs import get_logger
from kernel.problems import Problem
from kernel.settings import Settings

Scope = Literal["orders", "inventory", "supply", "review", "ops", "metrics"]

FILE_LOOK_S: Final = 1.0
"""How often the file is looked at, while requests come in: a key that was taken out is refused after so long at most."""

_SCHEME: Final = b"bearer "
_KEY_BYTES_MAX: Final = 512

_Name = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,64}$")]
_Tenant = Annotated[str, msgspec.Meta(pattern=rf"^[!-.0-~]{{1,{limits.TENANT_CHARS_MAX}}}$")]
"""Printable ASCII without spaces; a slash would make a record's name in Redis ambiguous."""


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One key as it stands in the file."""

    name: _Name
    tenant: _Tenant
    scopes: list[Scope]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    prefix: Annotated[str, msgspec.Meta(max_length=limits.INVENTORY_KEY_CHARS_MAX)] = ""
    rate_per_s: Annotated[float, msgspec.Meta(ge=0)] = 0
    burst: Annotated[int, msgspec.Meta(ge=0)] = 0
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a key stands for."""

    name: str
    tenant: str
    scopes: frozenset[str]
    prefix: str = ""
    """Inventory keys must begin with it; empty = any."""
    rate_per_s: float = 0
    """Requests per second in the long run; 0 = no limit."""


@dataclass(slots=True)
class _Key:
    digest: bytes
    principal: Principal
    burst: float
    expires_ms: int | None


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class KeyRing:
    """The keys in force. Not for threads: it belongs to one event loop."""

    def __init__(self, path: Path | None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Read the file; raises OSError or ValueError (which names what is wrong). Without a file no key is in force."""
        self._path = path
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._keys: dict[bytes, _Key] = {}
        self._version: tuple[int, int, int] | None = None
        self._looked_at = clock.monotonic()
        self.load_error: str | None = None
        """Why the file as it is now is not in force; the keys read before still are."""
        if path is not None:
            self._version = _version(path)
            self._keys = _read(path)

    @classmethod
    def load(cls, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> Self:
        """The keys of `settings.api_keys_file`; raises as the constructor."""
        return cls(settings.api_keys_file, clock)

    @property
    def next_expiry_ms(self) -> int | None:
        """When the next key that is still in force ends, UTC epoch ms; None where none does."""
        now_ms = self._clock.now_ms()
        return min(
            (ms for key in self._keys.values() if (ms := key.expires_ms) is not None and ms > now_ms), default=None
        )

    def authenticate(self, authorization: bytes | None) -> Principal:
        """Whom the Authorization header names; raises Problem UNAUTHORIZED, or TOO_MANY_REQUESTS above its limit.

        All that is wrong with a key answers alike, so that nobody learns which keys there are.
        """
        if self._clock.monotonic() - self._looked_at >= FILE_LOOK_S:
            self._reload_if_changed()
        key = self._find(authorization) if authorization is not None else None
        if key is None:
            raise Problem("UNAUTHORIZED")
        if key.principal.rate_per_s and not self._take_token(key):
            raise Problem("TOO_MANY_REQUESTS", f"more than {key.principal.rate_per_s:g} requests per second")
        return key.principal

    def recognise(self, authorization: bytes) -> Principal | None:
        """Whom the header names, if that is all there is to ask: None for a key that is unknown, or has a limit."""
        if self._clock.monotonic() - self._looked_at >= FILE_LOOK_S:
            self._reload_if_changed()
        key = self._find(authorization)
        return None if key is None or key.principal.rate_per_s else key.principal

    def _find(self, authorization: bytes) -> _Key | None:
        if authorization[: len(_SCHEME)].lower() != _SCHEME or len(authorization) > _KEY_BYTES_MAX:
            return None
        digest = hashlib.sha256(authorization[len(_SCHEME) :].strip()).digest()
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            return None
        if key.expires_ms is not None and self._clock.now_ms() >= key.expires_ms:
            return None
        return key

    def _take_token(self, key: _Key) -> bool:
        now = self._clock.monotonic()
        # By name: a rotated key goes on with the bucket of its predecessor, and a reload refills nobody's.
        bucket = self._buckets.setdefault(key.principal.name, _Bucket(key.burst, now))
        bucket.tokens = min(key.burst, bucket.tokens + (now - bucket.filled_at) * key.principal.rate_per_s)
        bucket.filled_at = now
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _reload_if_changed(self) -> None:
        self._looked_at = self._clock.monotonic()
        if self._path is None:
            return
        try:
            version = _version(self._path)
            if version == self._version:
                return
            self._keys = _read(self._path)
            self._version, self.load_error = version, None
            get_logger().info("api_keys_reloaded", keys=len(self._keys))
        except (OSError, ValueError) as error:
            # A half-written or missing file must lock nobody out: what was in force stays, and the log says so.
            if self.load_error != str(error):
                self.load_error = str(error)
                get_logger().error("api_keys_not_reloaded", reason=self.load_error)


def _version(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: Path) -> dict[bytes, _Key]:
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=list[_Entry])
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path.name}: {error}") from error
    keys = [_key(entry) for entry in entries]
    if len({key.digest for key in keys}) < len(keys):
        raise ValueError(f"{path.name}: one hash stands there twice")
    # Orders belong to a tenant, and the audit table names whoever asked: a name must mean one of them.
    tenants: dict[str, str] = {}
    for principal in (key.principal for key in keys):
        if tenants.setdefault(principal.name, principal.tenant) != principal.tenant:
            raise ValueError(f"{path.name}: {principal.name} stands there for two tenants")
    return {key.digest: key for key in keys}


def _key(entry: _Entry) -> _Key:
    scopes = frozenset[str](entry.scopes)
    principal = Principal(entry.name, entry.tenant, scopes, entry.prefix, entry.rate_per_s)
    expires_ms = None if entry.expires_at is None else int(entry.expires_at.timestamp() * 1000)
    # Without a burst of its own a key may use up one second's worth at once.
    burst = float(entry.burst) or max(1.0, entry.rate_per_s)
    return _Key(bytes.fromhex(entry.sha256), principal, burst, expires_ms)
