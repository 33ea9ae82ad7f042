"""API keys: who is let in, for how long, how often, and what happens when the file changes under us."""

import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kernel.auth import FILE_LOOK_S, KeyRing
from kernel.clock import Clock
from kernel.problems import Problem

NOW_MS = 1_800_000_000_000


class TestClock(Clock):
    __test__ = False

    def __init__(self) -> None:
        self.ms = NOW_MS
        self.seconds = 100.0

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.seconds


def entry(key: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": "shop",
        "tenant": "demo",
        "scopes": ["orders"],
        "sha256": hashlib.sha256(key.encode()).hexdigest(),
    } | fields


def write(path: Path, *entries: dict[str, Any]) -> None:
    path.write_text(json.dumps(entries))
    # Two writes within one tick of the file system's clock must still look different.
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def refused(ring: KeyRing, header: bytes | None) -> str:
    with pytest.raises(Problem) as problem:
        ring.authenticate(header)
    return problem.value.code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "api_keys.json"


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


def test_a_key_names_its_principal(path: Path, clock: TestClock) -> None:
    write(path, entry("k1", scopes=["orders", "inventory"], prefix="sku-"), entry("k2", name="ops", scopes=["ops"]))
    ring = KeyRing(path, clock)
    principal = ring.authenticate(b"Bearer k1")
    assert (principal.name, principal.tenant, principal.prefix) == ("shop", "demo", "sku-")
    assert principal.scopes == {"orders", "inventory"}
    assert ring.authenticate(b"bearer k2").name == "ops"


@pytest.mark.parametrize(
    "header",
    [None, b"", b"Bearer", b"Bearer ", b"Bearer k9", b"Basic k1", b"k1", b"Bearer \xff\xfe", b"Bearer " + b"k" * 9_999],
)
def test_everything_else_is_refused_alike(path: Path, clock: TestClock, header: bytes | None) -> None:
    write(path, entry("k1"))
    ring = KeyRing(path, clock)
    with pytest.raises(Problem) as problem:
        ring.authenticate(header)
    assert problem.value.status == 401
    with pytest.raises(Problem) as other:
        ring.authenticate(b"Bearer wrong")
    assert problem.value.body() == other.value.body()


def test_the_hash_itself_is_no_key(path: Path, clock: TestClock) -> None:
    write(path, entry("k1"))
    assert refused(KeyRing(path, clock), b"Bearer " + hashlib.sha256(b"k1").hexdigest().encode()) == "UNAUTHORIZED"


def test_a_key_expires(path: Path, clock: TestClock) -> None:
    write(path, entry("k1", expires_at="2027-01-15T08:00:00Z"))
    ring = KeyRing(path, clock)
    clock.ms = NOW_MS - 1
    assert ring.authenticate(b"Bearer k1")
    clock.ms = NOW_MS
    assert refused(ring, b"Bearer k1") == "UNAUTHORIZED"


def test_keys_rotate_without_a_restart(path: Path, clock: TestClock) -> None:
    write(path, entry("old"))
    ring = KeyRing(path, clock)
    write(path, entry("old"), entry("new"))
    assert refused(ring, b"Bearer new") == "UNAUTHORIZED"
    clock.seconds += FILE_LOOK_S
    assert ring.authenticate(b"Bearer new") == ring.authenticate(b"Bearer old")
    write(path, entry("new"))
    clock.seconds += FILE_LOOK_S
    assert refused(ring, b"Bearer old") == "UNAUTHORIZED"
    assert ring.authenticate(b"Bearer new")


def test_a_broken_or_missing_file_locks_nobody_out(path: Path, clock: TestClock) -> None:
    write(path, entry("k1"))
    ring = KeyRing(path, clock)
    path.write_text("[{")
    clock.seconds += FILE_LOOK_S
    assert ring.authenticate(b"Bearer k1")
    assert ring.load_error is not None
    path.unlink()
    clock.seconds += FILE_LOOK_S
    assert ring.authenticate(b"Bearer k1")
    write(path, entry("k2"))
    clock.seconds += FILE_LOOK_S
    assert ring.authenticate(b"Bearer k2")
    assert ring.load_error is None
    assert refused(ring, b"Bearer k1") == "UNAUTHORIZED"


@pytest.mark.parametrize(
    "wrong",
    [
        {"scopes": ["everything"]},
        {"sha256": "abc"},
        {"tenant": "de/mo"},
        {"tenant": "t" * 33},
        {"name": ""},
        {"name": "two words"},
        {"rate_per_s": -1},
        {"expires_at": "2027-01-15T08:00:00"},
        {"scope": ["orders"]},
    ],
)
def test_a_wrong_file_does_not_start(path: Path, clock: TestClock, wrong: dict[str, Any]) -> None:
    write(path, entry("k1", **wrong))
    with pytest.raises(ValueError, match=r"api_keys\.json"):
        KeyRing(path, clock)


def test_one_hash_twice_does_not_start(path: Path, clock: TestClock) -> None:
    write(path, entry("k1"), entry("k1", name="other"))
    with pytest.raises(ValueError, match="twice"):
        KeyRing(path, clock)


def test_one_name_for_two_tenants_does_not_start(path: Path, clock: TestClock) -> None:
    write(path, entry("k1"), entry("k2", tenant="rival"))
    with pytest.raises(ValueError, match="two tenants"):
        KeyRing(path, clock)


def test_each_of_two_keys_with_one_name_ends_by_itself(path: Path, clock: TestClock) -> None:
    """The old key says when it ends, so that a rotation needs no second edit."""
    ends_at = datetime.fromtimestamp(clock.now_ms() / 1000 + 60, UTC).isoformat()
    write(path, entry("old", expires_at=ends_at), entry("new"))
    ring = KeyRing(path, clock)
    assert ring.authenticate(b"Bearer old") == ring.authenticate(b"Bearer new")
    clock.ms += 60_000
    assert refused(ring, b"Bearer old") == "UNAUTHORIZED"
    assert ring.authenticate(b"Bearer new")


def test_a_missing_file_does_not_start_and_none_lets_nobody_in(path: Path, clock: TestClock) -> None:
    with pytest.raises(OSError, match="api_keys"):
        KeyRing(path, clock)
    assert refused(KeyRing(None, clock), b"Bearer k1") == "UNAUTHORIZED"


def test_the_limit_of_requests_fills_with_time(path: Path, clock: TestClock) -> None:
    write(path, entry("k1", rate_per_s=8, burst=3), entry("k2", name="other"))
    ring = KeyRing(path, clock)
    for _ in range(3):
        ring.authenticate(b"Bearer k1")
    assert refused(ring, b"Bearer k1") == "TOO_MANY_REQUESTS"
    clock.seconds += 0.125
    ring.authenticate(b"Bearer k1")
    assert refused(ring, b"Bearer k1") == "TOO_MANY_REQUESTS"
    # A long rest fills the bucket, no further.
    clock.seconds += 0.75
    for _ in range(3):
        ring.authenticate(b"Bearer k1")
    assert refused(ring, b"Bearer k1") == "TOO_MANY_REQUESTS"
    for _ in range(100):
        ring.authenticate(b"Bearer k2")


def test_rotation_does_not_refill_the_limit(path: Path, clock: TestClock) -> None:
    write(path, entry("old", rate_per_s=0.001, burst=1))
    ring = KeyRing(path, clock)
    ring.authenticate(b"Bearer old")
    write(path, entry("new", rate_per_s=0.001, burst=1))
    clock.seconds += FILE_LOOK_S
    assert refused(ring, b"Bearer new") == "TOO_MANY_REQUESTS"


def test_a_fractional_rate_lets_one_through_at_first(path: Path, clock: TestClock) -> None:
    write(path, entry("k1", rate_per_s=0.5))
    ring = KeyRing(path, clock)
    ring.authenticate(b"Bearer k1")
    assert refused(ring, b"Bearer k1") == "TOO_MANY_REQUESTS"
    clock.seconds += 2
    ring.authenticate(b"Bearer k1")
