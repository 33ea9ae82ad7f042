"""The rules of the doctor over facts: what is dangerous, what is only a warning, what nobody can tell."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inventory.doctor_mysql import ID_COLUMNS, MysqlFacts, judge_migrations, judge_mysql
from inventory.doctor_rabbitmq import judge_rabbitmq
from inventory.doctor_redis import RedisFacts, judge_redis
from kernel.amqp_door import BrokerFacts
from kernel.doctor import Finding, Severity, Status, Untold, clock_finding, clock_skew_ms, version_tuple
from sql.migration_files import read_migrations

GOOD_REDIS = RedisFacts(
    version="7.0.15",
    role="master",
    run_id="a" * 40,
    maxmemory_policy="noeviction",
    appendonly=True,
    appendfsync="everysec",
    no_appendfsync_on_rewrite="no",
    default_user_refused=(),
    scripts_refused=(),
    driver_retries=0,
    clock_skew_ms=0,
)
GOOD_MYSQL = MysqlFacts(
    version="10.11.19-MariaDB-0+deb12u1",
    flush_log_at_trx_commit=1,
    log_bin=True,
    sync_binlog=1,
    binlog_format="ROW",
    max_allowed_packet=16 * 1024 * 1024,
    read_only=False,
    sql_mode="ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES",
    time_zone="+00:00",
    lock_wait_s=4,
    isolation="READ-COMMITTED",
    wsrep_on=False,
    clock_skew_ms=0,
    migrations_wrong=(),
    migrations_newer=(),
    wrong_collations=(),
    driver_version="0.2.18",
)
GOOD_BROKER = BrokerFacts("3.10.8", 3, 2, separate_connections=True, queue="right", queue_detail="")


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    named = {finding.name: finding for finding in findings}
    assert len(named) == len(findings), "names are unique"
    return named


def every_finding() -> list[Finding]:
    return [*judge_redis(GOOD_REDIS, "broker"), *judge_mysql(GOOD_MYSQL), *judge_rabbitmq(GOOD_BROKER, 0)]


def test_good_servers_are_well() -> None:
    assert {finding.status for finding in every_finding()} == {Status.OK}
    assert {finding.mend for finding in every_finding()} == {""}


@pytest.mark.parametrize(
    ("check", "change", "shown"),
    [
        ("redis.version", {"version": "6.2.14"}, "6.2.14"),
        ("redis.role", {"role": "slave"}, "slave"),
        ("redis.maxmemory_policy", {"maxmemory_policy": "allkeys-lru"}, "allkeys-lru"),
        ("redis.appendonly", {"appendonly": False}, "no"),
        ("redis.no_appendfsync_on_rewrite", {"no_appendfsync_on_rewrite": "yes"}, "yes"),
        ("redis.default_user", {"default_user_refused": ("hset", "xadd")}, "may not run hset, xadd"),
        ("redis.scripts", {"scripts_refused": ("reserve",)}, "refused: reserve"),
        ("redis.driver_retries", {"driver_retries": 3}, "3"),
        ("clock.redis", {"clock_skew_ms": -5_001}, "-5001 ms"),
    ],
)
def test_each_wrong_fact_of_redis_is_dangerous_and_says_how_to_mend_it(
    check: str, change: dict[str, Any], shown: str
) -> None:
    expect_one_danger(judge_redis(replace(GOOD_REDIS, **change), "broker"), check, shown)


@pytest.mark.parametrize(
    ("check", "change", "shown"),
    [
        ("mysql.version", {"version": "10.6.16-MariaDB"}, "10.6.16-MariaDB"),
        ("mysql.version", {"version": "8.0.15"}, "8.0.15"),
        ("mysql.flush_log_at_trx_commit", {"flush_log_at_trx_commit": 2}, "2"),
        ("mysql.sync_binlog", {"sync_binlog": 0}, "0"),
        ("mysql.binlog_format", {"binlog_format": "STATEMENT"}, "STATEMENT"),
        ("mysql.max_allowed_packet", {"max_allowed_packet": 1_048_576}, "1048576"),
        ("mysql.read_only", {"read_only": True}, "ON"),
        ("mysql.wsrep_on", {"wsrep_on": True}, "ON"),
        ("mysql.sql_mode", {"sql_mode": "ONLY_FULL_GROUP_BY"}, "ONLY_FULL_GROUP_BY"),
        ("mysql.isolation", {"isolation": "REPEATABLE-READ"}, "REPEATABLE-READ"),
        ("mysql.time_zone", {"time_zone": "SYSTEM"}, "SYSTEM"),
        ("mysql.driver_version", {"driver_version": "0.2.11"}, "0.2.11"),
        ("mysql.migrations", {"migrations_wrong": ("0002_x.sql is missing",)}, "0002_x.sql is missing"),
        ("mysql.id_collations", {"wrong_collations": ("t.c utf8mb4_bin",)}, "t.c utf8mb4_bin"),
        ("clock.mysql", {"clock_skew_ms": 60_000}, "+60000 ms"),
    ],
)
def test_each_wrong_fact_of_mysql_is_dangerous_and_says_how_to_mend_it(
    check: str, change: dict[str, Any], shown: str
) -> None:
    expect_one_danger(judge_mysql(replace(GOOD_MYSQL, **change)), check, shown)


@pytest.mark.parametrize(
    ("check", "change", "shown"),
    [
        ("rabbitmq.version", {"version": "3.9.29"}, "3.9.29"),
        ("rabbitmq.queue", {"queue": "wrong", "queue_detail": "X: X - inequivalent arg"}, "inequivalent arg"),
        ("rabbitmq.heartbeat", {"heartbeat_s": 60}, "60 s"),
        ("rabbitmq.heartbeat", {"heartbeat_s": 0}, "0 s"),
        ("rabbitmq.separate_connections", {"separate_connections": False}, "shared"),
        ("rabbitmq.persistent_messages", {"delivery_mode": 1}, "delivery mode 1"),
    ],
)
def test_each_wrong_fact_of_rabbitmq_is_dangerous_and_says_how_to_mend_it(
    check: str, change: dict[str, Any], shown: str
) -> None:
    expect_one_danger(judge_rabbitmq(replace(GOOD_BROKER, **change), 0), check, shown)


def expect_one_danger(findings: list[Finding], check: str, shown: str) -> None:
    named = by_name(findings)
    assert {name for name, finding in named.items() if finding.dangerous} == {check}
    assert named[check].found == shown
    assert len(named[check].mend) > 10
    assert named[check].mend in named[check].sentence


def test_what_a_crash_of_redis_costs_depends_on_what_a_2xx_waits_for() -> None:
    lazy = replace(GOOD_REDIS, appendfsync="no")
    assert by_name(judge_redis(lazy, "redis"))["redis.appendfsync"].dangerous
    finding = by_name(judge_redis(lazy, "broker"))["redis.appendfsync"]
    assert (finding.status, finding.severity) == (Status.WRONG, Severity.WARNING)
    assert by_name(judge_redis(replace(GOOD_REDIS, appendfsync="always"), "redis"))["redis.appendfsync"].status == "ok"


def test_a_missing_right_is_unknown_and_names_the_right() -> None:
    untold = Untold("let the account ask: `ACL SETUSER <user> +config|get`")
    named = by_name(judge_redis(replace(GOOD_REDIS, appendfsync=untold, no_appendfsync_on_rewrite=untold), "redis"))
    for name in ("redis.appendfsync", "redis.no_appendfsync_on_rewrite"):
        assert (named[name].status, named[name].dangerous) == (Status.UNKNOWN, False)
        assert "+config|get" in named[name].mend
    queue = by_name(judge_rabbitmq(replace(GOOD_BROKER, queue="not_told"), 0))["rabbitmq.queue"]
    assert (queue.status, "set_permissions" in queue.mend) == (Status.UNKNOWN, True)


def test_a_queue_that_is_not_there_yet_keeps_nobody_from_making_it() -> None:
    queue = by_name(judge_rabbitmq(replace(GOOD_BROKER, queue="missing"), 0))["rabbitmq.queue"]
    assert (queue.status, queue.severity) == (Status.WRONG, Severity.WARNING)


def test_a_binary_log_is_judged_only_where_there_is_one() -> None:
    named = by_name(judge_mysql(replace(GOOD_MYSQL, log_bin=False, sync_binlog=0, binlog_format="MIXED")))
    assert {named[name].found for name in ("mysql.sync_binlog", "mysql.binlog_format")} == {"no binary log"}
    assert {finding.status for finding in named.values()} == {Status.OK}


def test_a_newer_version_may_migrate_while_this_one_still_runs() -> None:
    known = read_migrations()
    rows = [(one.number, one.name, one.checksum, len(one.statements), 1) for one in known]
    newer = (9_999, "9999_future.sql", "f" * 64, 1, 1)
    assert judge_migrations(known, [*rows, newer]) == ((), ("9999_future.sql",))
    finding = by_name(judge_mysql(replace(GOOD_MYSQL, migrations_newer=("9999_future.sql",))))["mysql.migrations_newer"]
    assert (finding.status, finding.dangerous) == (Status.WRONG, False)


def test_migrations_that_are_missing_half_done_or_changed() -> None:
    known = read_migrations()
    first = known[0]
    assert judge_migrations(known, [])[0][0] == f"{first.name} is missing"
    half = [(first.number, first.name, first.checksum, 1, 0)]
    assert judge_migrations([first], half)[0] == (f"{first.name} is half done",)
    changed = [(first.number, first.name, "0" * 64, len(first.statements), 1)]
    assert judge_migrations([first], changed)[0] == (f"{first.name} was changed after it was applied",)


def test_migrations_declare_every_id_column_as_ascii_bin() -> None:
    declared: set[str] = set()
    for migration in read_migrations():
        for statement in migration.statements:
            for line in statement.splitlines():
                words = line.split()
                if len(words) > 1 and words[0] in ID_COLUMNS and "CHAR(" in words[1]:
                    declared.add(words[0])
                    assert "COLLATE ascii_bin" in line, f"{migration.name}: {line}"
    assert declared == set(ID_COLUMNS)


def test_versions_and_clocks() -> None:
    assert version_tuple("10.11.19-MariaDB-0+deb12u1") == (10, 11, 19)
    assert version_tuple("3.13.0~rc.1") == (3, 13, 0)
    assert version_tuple("") == ()
    # Asked from 100 to 200: anything between may be the same moment.
    assert [clock_skew_ms(server, 100, 200) for server in (90, 100, 150, 200, 230)] == [-10, 0, 0, 0, 30]
    assert clock_finding("redis", 5_000).status is Status.OK
    assert clock_finding("redis", 5_001).dangerous


def test_the_page_names_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    missing = [finding.name for finding in every_finding() if f"`{finding.name}`" not in page]
    assert not missing
