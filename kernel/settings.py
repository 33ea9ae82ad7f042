"""Settings of a process, read once in its entry point from `STOCKGATE_*` environment variables or a `.env` file.

Nothing reads the environment elsewhere: settings are handed down as an argument.
"""

from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from pydantic import AwareDatetime, Field, FilePath, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kernel import limits
from kernel.addresses import ENCRYPTED, check_address


class Settings(BaseSettings):
    """What an operator can set. Durations carry their unit; addresses are URLs and never logged."""

    model_config = SettingsConfigDict(
        env_prefix="STOCKGATE_",
        env_file=".env",
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,  # they are the text of docs/settings.md
    )

    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """The one Redis that decides, with the account of the process."""
    mysql_url: SecretStr = SecretStr("mysql://stockgate@127.0.0.1:3306/stockgate")
    """MySQL or MariaDB, the authority, with the account of the process."""
    amqp_url: SecretStr = SecretStr("amqp://127.0.0.1:5672/stockgate")
    """RabbitMQ and the virtual host with the log queues, with the account of the process."""
    api_keys_file: Path | None = None
    """Who may call: a JSON file of hashed keys, looked at every second. None = nobody."""

    tls_ca_file: FilePath | None = None
    """Whom to trust at `rediss://`, `mysqls://` and `amqps://`, in PEM; None = whom the machine trusts."""
    tls_cert_file: FilePath | None = None
    """Our certificate, for servers that ask for one, in PEM with its chain; its key may stand in the same file."""
    tls_key_file: FilePath | None = None
    """The key of `tls_cert_file`, where it stands in a file of its own."""

    operators_listen: str = ""
    """`host:port` where a gateway answers operators: `/ops/…` and `/metrics` are then unknown on its other address."""

    shards: int = 1
    """Shards of the inventory. Orders over several shards are not built yet, so anything but 1 refuses to start."""

    ack: Literal["broker", "redis"] = "broker"
    """What a 2xx waits for: `broker` = confirmed by the quorum queue; `redis` = decided by the script."""

    run_leader: bool = True
    """Whether a gateway stands as a candidate to lead the shards."""

    hold_ttl_default_s: int = Field(default=900, ge=1, le=limits.TTL_SECONDS_MAX)
    """How long a hold lasts where the caller does not say it."""
    hold_ttl_max_s: int = Field(default=86_400, ge=1, le=limits.TTL_SECONDS_MAX)
    """The longest hold that a caller may ask for."""
    hold_grace_ms: int = Field(default=30_000, ge=0, le=3_600_000)
    """A hold is not due before the epoch has been open this long: an outage of ours does not eat a buyer's time."""

    auto_db_after_s: int = Field(default=0, ge=0, le=86_400)
    """A candidate for whom Redis is away for so long while nobody else leads lets MySQL decide; 0 = only operators do that."""

    mode_wish: Literal["", "hot", "db"] = ""
    """Who is to decide, Redis or MySQL, as configuration wants it; with the two below. Empty: configuration wants nothing."""
    mode_wish_at: AwareDatetime | None = None
    """When that was decided (`2026-12-24T18:00:00Z`). What was asked for later, by whomever, counts instead."""
    mode_wish_reason: str = Field(default="", max_length=200)
    """Why, for the audit table."""

    redis_timeout_ms: int = Field(default=2_000, ge=10, le=60_000)
    """For one command or script call."""
    mysql_timeout_ms: int = Field(default=5_000, ge=10, le=60_000)
    """For one statement; those of the audit and of migrations have limits of their own."""
    amqp_timeout_ms: int = Field(default=5_000, ge=10, le=60_000)
    """For one exchange with the broker, connecting among them."""
    amqp_heartbeat_s: int = Field(default=3, ge=1, le=15)
    """After about three of them the broker gives the lock of a leader that stands still to another."""
    confirm_timeout_ms: int = Field(default=10_000, ge=100, le=60_000)
    """A publish not confirmed by then makes the leader give up its connection, and with it the lock."""
    answer_deadline_ms: int = Field(default=5_000, ge=100, le=120_000)
    """From arrival to answer. After it the caller hears 503, `outcome: unknown` if the script may have run."""

    unconfirmed_bytes_reserve_max: int = Field(default=64 * 1024 * 1024, ge=1024)
    """Above this many bytes in the log that the broker has not confirmed, reserves hear 503."""
    unconfirmed_bytes_settle_max: int = Field(default=96 * 1024 * 1024, ge=1024)
    """The same bound for moves of known orders, which give stock back or finish a sale."""
    log_bytes_max: int = Field(default=256 * 1024 * 1024, ge=1024)
    """Above this many bytes in the log, what is confirmed may be trimmed before it is applied."""
    evict_after_s: int = Field(default=300, ge=0, le=86_400)
    """How long a settled record stays in Redis after its last change; it also waits for MySQL to have it."""

    mysql_pool_max: int = Field(default=8, ge=1, le=256)
    """Sessions of one process at most."""
    http_connections_max: int = Field(default=2_048, ge=1)
    """Callers' connections of one gateway, and calls in flight. One more hears 503; twice as many are cut."""
    shutdown_grace_s: int = Field(default=15, ge=1, le=300)
    """From the signal, or from the end of `drain_delay_ms`, until the process has ended, whatever it waits for."""
    drain_delay_ms: int = Field(default=0, ge=0, le=120_000)
    """How long a gateway that was asked to end says so on `/health/ready` and goes on, before it takes no more connections:
    as long as a load balancer needs to notice."""
    reconcile_interval_s: float = Field(default=5.0, ge=0.05)
    """How often the reconciler compares Redis with MySQL."""
    in_flight_alarm_s: float = Field(default=10.0, ge=0.1)
    """A key whose change has not reached MySQL for this long is called stuck."""
    settings_check_s: float = Field(default=60.0, ge=0.05, le=3_600)
    """How often a process looks whether the servers are set up safely; sooner after a new connection, or while not."""
    audit_interval_s: float = Field(default=3_600.0, ge=0)
    """How often the reconciler checks the invariants over all tables; 0 = only when somebody asks."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    log_json: bool = True
    """One JSON object a line, or lines for people."""
    metrics_host: str = "127.0.0.1"
    """Where `metrics_port` listens."""
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    """Port of `/metrics` and `/health/*` of this process alone; 0 = none.

    A gateway that shares its socket with others needs one, or a scrape reaches any of them.
    """
    failpoints: str = ""
    """Tests only: `name=kill|stop[@nth]`, comma-separated, see `kernel.failpoints`."""

    @field_validator("shards")
    @classmethod
    def _one_shard(cls, shards: int) -> int:
        if shards != 1:
            raise ValueError(
                "STOCKGATE_SHARDS must be 1: orders over several shards are not built yet, "
                "and starting with more would let one order be taken in part"
            )
        return shards

    @field_validator("redis_url", "mysql_url", "amqp_url")
    @classmethod
    def _safe_address(cls, url: SecretStr, info: ValidationInfo) -> SecretStr:
        check_address(str(info.field_name), url.get_secret_value())
        return url

    @field_validator("operators_listen")
    @classmethod
    def _an_address(cls, address: str) -> str:
        host, colon, port = address.rpartition(":")
        if address and not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65_535):
            raise ValueError("STOCKGATE_OPERATORS_LISTEN must be host:port, for example 10.0.0.5:9090 or [::1]:9090")
        return address

    def model_post_init(self, context: object, /) -> None:
        """Check relations between settings that a single field cannot see."""
        if self.unconfirmed_bytes_settle_max < self.unconfirmed_bytes_reserve_max:
            raise ValueError("STOCKGATE_UNCONFIRMED_BYTES_SETTLE_MAX must not be below the bound for reserves")
        if len({bool(self.mode_wish), self.mode_wish_at is not None, bool(self.mode_wish_reason.strip())}) > 1:
            raise ValueError("STOCKGATE_MODE_WISH, STOCKGATE_MODE_WISH_AT and STOCKGATE_MODE_WISH_REASON go together")
        if not self.mode_wish_reason.isprintable():
            raise ValueError("STOCKGATE_MODE_WISH_REASON holds characters that cannot be printed")
        if self.tls_key_file is not None and self.tls_cert_file is None:
            raise ValueError("STOCKGATE_TLS_KEY_FILE is of no use without STOCKGATE_TLS_CERT_FILE")
        urls = (self.redis_url, self.mysql_url, self.amqp_url)
        encrypted = any(urlsplit(url.get_secret_value()).scheme in ENCRYPTED for url in urls)
        if (self.tls_ca_file or self.tls_cert_file) and not encrypted:
            # Somebody believes that it is.
            raise ValueError("STOCKGATE_TLS_… is set, but no address is encrypted: rediss://, mysqls:// or amqps://")
        if self.hold_ttl_default_s > self.hold_ttl_max_s:
            raise ValueError("STOCKGATE_HOLD_TTL_DEFAULT_S must not exceed STOCKGATE_HOLD_TTL_MAX_S")
