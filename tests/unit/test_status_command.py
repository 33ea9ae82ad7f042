"""What `stockgate status` and `stockgate audit` say, and by which exit code."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from inventory.audit import Check
from inventory.reconcile_tasks import TaskView
from inventory.shard_reply import ShardReply, shard_reply
from inventory.shard_state import ShardRow
from inventory.status import LogStatus, ShardReading, Troubles
from kernel.settings import Settings
from stockgate import addresses, audit_command, doctor_command, status_command
from stockgate.processes import StackError
from stockgate.sections import plain_lines

NOW_MS = 1_790_000_060_000
SETTINGS = Settings(redis_url=SecretStr("redis://u:hidden@redis.example:6379/0"))


ROW = ShardRow(0, "hot", 7, 3, 3, 100, "d", NOW_MS, NOW_MS, 0, 0, 0, "", NOW_MS - 60_000, "", "")


def well() -> ShardReading:
    """A shard on which nothing is wrong, as the stores show it."""
    return ShardReading(
        row=ROW,
        troubles=Troubles(0, 0, 2, 1, 1),
        comparison=compared(),
        log=LogStatus(103, 102, fenced=False, unconfirmed_bytes=80, lag_entries=3, lag_seconds=0.2),
        gateways=2,
        queue_depth=1,
        worker_attached=True,
        leader_present=True,
    )


def compared(**changed: Any) -> TaskView:
    fields: dict[str, Any] = {name: "" if name in {"scope", "status", "detail"} else 0 for name in TaskView._fields}
    fields |= {"healthy": 40, "finished_ms": NOW_MS - 2_000}
    fields |= changed
    return TaskView(**fields)


def seen(**changed: Any) -> ShardReply:
    reading = well()
    for name, value in changed.items():
        setattr(reading, name, value)
    return shard_reply(0, reading, leads=False)


def troubles(**changed: Any) -> list[str]:
    return status_command.summary(seen(**changed), SETTINGS, NOW_MS)["troubles"]


def test_all_is_well() -> None:
    result = status_command.summary(seen(), SETTINGS, NOW_MS)
    assert (result["ok"], result["troubles"], result["gateways"], result["drift_found"]) == (True, [], 2, 1)
    assert msgspec.convert(result["shards"][0], ShardReply) == seen()
    lines = plain_lines(status_command.sections(json.loads(json.dumps(result))))
    assert "behind in MySQL\t3 entries, 0.2 s" in lines
    assert "leader\tpresent, term 3" in lines
    assert "mode\thot, since 2026-09-21 14:13:20 UTC" in lines
    assert lines[-1] == "all is well"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"row": ROW._replace(mode="opening")}, "shard 0 is opening"),
        ({"row": ROW._replace(alarm="FORK", alarm_detail="two")}, "alarm FORK: two"),
        ({"row": ROW._replace(rebuild_wanted=7)}, "rebuild"),
        ({"log": None}, "no head of epoch 7"),
        ({"log": LogStatus(9, 9, fenced=True, unconfirmed_bytes=0, lag_entries=0, lag_seconds=0)}, "fenced"),
        ({"log": LogStatus(9, 9, fenced=False, unconfirmed_bytes=0, lag_entries=9, lag_seconds=12.5)}, "12.5 s behind"),
        ({"gateways": 0}, "no gateway"),
        ({"worker_attached": False}, "no persist worker"),
        ({"leader_present": False}, "nobody leads shard 0"),
        ({"troubles": Troubles(3, 5, 0, 0, 0)}, "3 keys are held"),
        ({"comparison": None}, "never compared"),
        ({"comparison": compared(finished_ms=NOW_MS - 90_000)}, "compared 90 s ago"),
        ({"comparison": compared(stuck=2, detail="sku-1")}, "2 keys do not reach MySQL: sku-1"),
        ({"comparison": compared(lost=1)}, "1 keys are lost in Redis"),
    ],
)
def test_each_trouble_is_a_sentence(changed: dict[str, Any], words: str) -> None:
    found = troubles(**changed)
    assert len(found) == 1
    assert words in found[0]


def test_a_store_that_is_away_is_named_without_its_password() -> None:
    away = troubles(missing=["redis"], log=None, gateways=None)
    assert away == ["redis does not answer at redis://redis.example:6379/0: `stockgate doctor` says more"]
    nothing = ShardReading(missing=["mysql", "redis", "rabbitmq"])
    result = status_command.summary(shard_reply(0, nothing, leads=False), SETTINGS, NOW_MS)
    assert (result["ok"], len(result["troubles"])) == (False, 3)
    assert "queue depth\t-" in plain_lines(status_command.sections(result))


def test_no_server_is_guessed(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"no stack runs in .*STOCKGATE_REDIS_URL"):
        addresses.require_addresses(Settings(_env_file=None), tmp_path)  # pyright: ignore[reportCallIssue]
    addresses.require_addresses(SETTINGS, tmp_path)


@pytest.mark.parametrize("command", [status_command, audit_command, doctor_command])
def test_the_command_says_so_where_nothing_runs(command: Any, tmp_path: Path) -> None:
    with pytest.raises(StackError, match=r"`stockgate up` starts one"):
        command.run(Settings(_env_file=None), run_dir=tmp_path, as_json=False)  # pyright: ignore[reportCallIssue]


def test_an_audit_for_people() -> None:
    good, bad = (
        Check("after_images_chain", 9),
        Check("redis_equals_mysql", 3, [{"inventory_key": f"k{n}"} for n in range(25)]),
    )
    result: dict[str, Any] = {
        "ok": False,
        "checks": [
            {"name": one.name, "ok": one.ok, "checked": one.checked, "violations": one.violations}
            for one in (good, bad)
        ],
    }
    lines = plain_lines(audit_command.sections(result))
    assert "ok\tafter_images_chain\t9\t0" in lines
    assert "VIOLATED\tredis_equals_mysql\t3\t25" in lines
    assert '{"inventory_key": "k0"}' in lines
    assert "and 5 more: `stockgate audit --json` has them" in lines
    assert "invariants are violated" in lines
    assert (
        plain_lines(audit_command.sections({"ok": True, "checks": result["checks"][:1]}))[-1] == "every invariant holds"
    )
    assert "not audited" in plain_lines(audit_command.sections({"ok": False, "error": "mysql: away"}))[0]
