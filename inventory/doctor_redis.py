"""Whether Redis is set up so that a decision stays a decision: facts as the server tells them, then rules over them."""

from dataclasses import dataclass
from typing import Any, Final, Literal

import lua
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.doctor import Finding, Severity, Untold, clock_finding, clock_skew_ms, judged, version_tuple
from kernel.errors import ScriptFailed, StoreRefused
from kernel.redis_door import RedisDoor
from kernel.settings import Settings
from kernel.settings_watch import StoreCheck

VERSION_MIN: Final = (7, 0)

_ASKED: Final = ("appendfsync", "no-appendfsync-on-rewrite")
"""What INFO does not say."""
_INFO_RIGHT: Final = "let the account ask: `ACL SETUSER <user> +info`"
_CONFIG_RIGHT: Final = "let the account ask: `ACL SETUSER <user> +config|get`"
_DRYRUN_RIGHT: Final = "let the account ask: `ACL SETUSER <user> +acl|dryrun`"
_SCRIPT_RIGHT: Final = "let the account load scripts: `ACL SETUSER <user> +script|load +script|exists +eval +evalsha`"

_WRITES: Final = (
    ("set", "{sg:0}:x", "1"),
    ("hset", "{sg:0}:x", "f", "1"),
    ("hdel", "{sg:0}:x", "f"),
    ("sadd", "{sg:0}:x", "m"),
    ("xadd", "{sg:0}:x", "1-0", "f", "1"),
    ("xtrim", "{sg:0}:x", "MAXLEN", "1"),
    ("zadd", "{sg:0}:x", "1", "m"),
    ("zrem", "{sg:0}:x", "m"),
    ("unlink", "{sg:0}:x"),
)
"""What stands in Redis' file between MULTI and EXEC, once a script has run. Asked about, never executed."""


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """What Redis says; Untold where this account may not ask."""

    version: str | Untold
    role: str | Untold
    run_id: str | Untold
    """Another one: the server was started anew, and may have come back with older data."""
    maxmemory_policy: str | Untold
    appendonly: bool | Untold
    appendfsync: str | Untold
    no_appendfsync_on_rewrite: str | Untold
    default_user_refused: tuple[str, ...] | Untold
    """Commands of the scripts that the user `default` may not run."""
    scripts_refused: tuple[str, ...] | Untold
    """Scripts that Redis does not take, or takes under another sha."""
    driver_retries: int
    clock_skew_ms: int


async def read_redis_facts(redis: RedisDoor, clock: Clock = SYSTEM_CLOCK) -> RedisFacts:
    """Ask on a door for questions, never the deciding one. Raises StoreUnavailable where Redis is away."""
    info = await _info(redis)
    asked = await _config(redis)

    def told(name: str) -> str | Untold:
        return info.get(name, Untold(_INFO_RIGHT))

    def configured(name: str) -> str | Untold:
        return asked.get(name, Untold(_CONFIG_RIGHT))

    aof_enabled = told("aof_enabled")
    default_user_refused = await _default_user_refused(redis)
    scripts_refused = await _scripts_refused(redis)
    before_ms = clock.now_ms()
    seconds, microseconds = await redis.command("TIME")
    server_ms = int(seconds) * 1000 + int(microseconds) // 1000
    return RedisFacts(
        version=told("redis_version"),
        role=told("role"),
        run_id=told("run_id"),
        maxmemory_policy=told("maxmemory_policy"),
        appendonly=aof_enabled if isinstance(aof_enabled, Untold) else aof_enabled == "1",
        appendfsync=configured("appendfsync"),
        no_appendfsync_on_rewrite=configured("no-appendfsync-on-rewrite"),
        default_user_refused=default_user_refused,
        scripts_refused=scripts_refused,
        driver_retries=redis.retries,
        clock_skew_ms=clock_skew_ms(server_ms, before_ms, clock.now_ms()),
    )


async def check_redis(redis: RedisDoor, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> list[Finding]:
    """Every finding about Redis; raises StoreUnavailable where it is away."""
    return judge_redis(await read_redis_facts(redis, clock), settings.ack)


def watched_redis(redis: RedisDoor, settings: Settings) -> StoreCheck:
    """The check again and again, on a door for questions."""
    return StoreCheck("redis", lambda: check_redis(redis, settings), lambda: redis.generation)


def judge_redis(facts: RedisFacts, ack: Literal["broker", "redis"]) -> list[Finding]:
    """The rules."""
    return [
        judged(
            "redis.version",
            facts.version,
            lambda version: version_tuple(version) >= VERSION_MIN,
            wanted="7.0 or later",
            why="older versions replicate and recover a script's writes one by one, so that half a decision can come back",
            mend="upgrade the server",
        ),
        judged(
            "redis.role",
            facts.role,
            lambda role: role == "master",
            wanted="master",
            why="a replica is behind, and what it is told is thrown away at its next synchronisation",
            mend="point STOCKGATE_REDIS_URL at the master, or `REPLICAOF NO ONE` on this server",
        ),
        judged(
            "redis.run_id",
            facts.run_id,
            lambda run_id: bool(run_id),
            wanted="any, noted in the log",
            why="another one tells that Redis was started anew; the leader then proves its log before it goes on",
            mend="use a server that tells its run_id",
            severity=Severity.WARNING,
        ),
        judged(
            "redis.maxmemory_policy",
            facts.maxmemory_policy,
            lambda policy: policy == "noeviction",
            wanted="noeviction",
            why="with any other policy a full Redis throws stock and holds away instead of refusing new ones",
            mend=_configuration("maxmemory-policy noeviction"),
        ),
        judged(
            "redis.appendonly",
            facts.appendonly,
            lambda on: on,
            shown=_yes_no(facts.appendonly),
            wanted="yes",
            why="without its log on disk each restart of Redis empties it, and every sale waits for a rebuild from MySQL",
            mend=_configuration("appendonly yes"),
        ),
        _appendfsync(facts.appendfsync, ack),
        judged(
            "redis.no_appendfsync_on_rewrite",
            facts.no_appendfsync_on_rewrite,
            lambda value: value == "no",
            wanted="no",
            why="with yes nothing reaches the disk while the log is rewritten, for minutes on a large one",
            mend=_configuration("no-appendfsync-on-rewrite no"),
        ),
        judged(
            "redis.default_user",
            facts.default_user_refused,
            lambda refused: not refused,
            shown=_default_user(facts.default_user_refused),
            wanted="allowed to run what the scripts run, whether or not anybody can log in as it",
            why="Redis loads its file as this user: what a script wrote is dropped where it may not write, at each restart",
            mend="`ACL SETUSER default off ~* &* +@all`, and `user default off ~* &* +@all` in redis.conf or the ACL file",
        ),
        judged(
            "redis.scripts",
            facts.scripts_refused,
            lambda refused: not refused,
            shown=_scripts(facts.scripts_refused),
            wanted="each is loaded under the sha of its source",
            why="a decision is one script: where Redis does not take it, nothing is decided",
            mend=_SCRIPT_RIGHT,
        ),
        judged(
            "redis.driver_retries",
            facts.driver_retries,
            lambda retries: retries == 0,
            wanted="0",
            why="a script that the driver sends again by itself decides twice",
            mend="kernel/redis_door.py must hand `Retry(NoBackoff(), 0)` to the driver",
        ),
        clock_finding("redis", facts.clock_skew_ms),
    ]


def _appendfsync(value: str | Untold, ack: Literal["broker", "redis"]) -> Finding:
    """What a 2xx waits for decides what an unwritten second costs."""
    return judged(
        "redis.appendfsync",
        value,
        lambda mode: mode in {"everysec", "always"},
        wanted="everysec, or always",
        why="with no the system decides when decisions reach the disk: "
        + (
            "with STOCKGATE_ACK=redis they are all that was promised"
            if ack == "redis"
            else "the queue keeps what was promised, but more has to be rebuilt"
        ),
        mend=_configuration("appendfsync everysec"),
        severity=Severity.DANGEROUS if ack == "redis" else Severity.WARNING,
    )


def _configuration(line: str) -> str:
    return f"`CONFIG SET {line}`, and the line `{line}` in redis.conf"


def _yes_no(value: bool | Untold) -> str:
    return "yes" if value is True else "no"


def _default_user(refused: tuple[str, ...] | Untold) -> str:
    return f"may not run {', '.join(refused)}" if isinstance(refused, tuple) and refused else "may write"


def _scripts(refused: tuple[str, ...] | Untold) -> str:
    if isinstance(refused, Untold) or not refused:
        return f"{len(lua.names())} loaded"
    return f"refused: {', '.join(refused)}"


async def _info(redis: RedisDoor) -> dict[str, str]:
    """The lines of INFO by name; empty where this account may not ask."""
    try:
        reply: bytes = await redis.command("INFO")
    except StoreRefused as refused:
        _only_noperm(refused)
        return {}
    pairs = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


async def _config(redis: RedisDoor) -> dict[str, str]:
    """The settings that INFO does not tell; empty where this account may not ask, or the server hides the command."""
    try:
        flat: list[bytes] = await redis.command("CONFIG", "GET", *_ASKED)
    except StoreRefused as refused:
        _only_noperm(refused)
        return {}
    except ScriptFailed:
        # A server in the cloud answers that there is no such command.
        return {}
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


async def _default_user_refused(redis: RedisDoor) -> tuple[str, ...] | Untold:
    try:
        answers = [await redis.command("ACL", "DRYRUN", "default", *write) for write in _WRITES]
    except StoreRefused as refused:
        _only_noperm(refused)
        return Untold(_DRYRUN_RIGHT)
    except ScriptFailed:
        return Untold("a server that has no `ACL DRYRUN` cannot be asked: see that the user default may write")
    return tuple(write[0] for write, answer in zip(_WRITES, answers, strict=True) if answer != b"OK")


async def _scripts_refused(redis: RedisDoor) -> tuple[str, ...] | Untold:
    scripts = [lua.load(name) for name in lua.names()]
    try:
        known: list[Any] = await redis.command("SCRIPT", "EXISTS", *(script.sha for script in scripts))
        refused: list[str] = []
        for script, there in zip(scripts, known, strict=True):
            if not there and not await _loads(redis, script.source, script.sha):
                refused.append(script.name)
    except StoreRefused as failure:
        _only_noperm(failure)
        return Untold(_SCRIPT_RIGHT)
    return tuple(refused)


async def _loads(redis: RedisDoor, source: str, sha: str) -> bool:
    try:
        reply: bytes = await redis.command("SCRIPT", "LOAD", source)
    except ScriptFailed:
        return False
    return reply.decode() == sha


def _only_noperm(refused: StoreRefused) -> None:
    """A missing right is a finding; whatever else Redis refuses for tells that it cannot be asked now."""
    if refused.code != "NOPERM":
        raise refused
