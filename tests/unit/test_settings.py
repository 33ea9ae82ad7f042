"""Settings: defaults that work together, bounds that refuse, secrets that are not shown."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from kernel.settings import Settings


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `.env` of the checkout is read here."""
    monkeypatch.chdir(tmp_path)


def test_defaults_stand_in_order() -> None:
    settings = Settings()
    assert settings.hold_ttl_default_s <= settings.hold_ttl_max_s
    assert settings.unconfirmed_bytes_reserve_max < settings.unconfirmed_bytes_settle_max
    # One try of Redis fits into the answer's time, and a confirm may be waited for longer than any answer.
    assert settings.redis_timeout_ms < settings.answer_deadline_ms <= settings.confirm_timeout_ms


def test_environment_and_file_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("STOCKGATE_ACK=redis\nSTOCKGATE_HOLD_TTL_MAX_S=1000\nOTHER=1\n")
    monkeypatch.setenv("STOCKGATE_HOLD_TTL_MAX_S", "2000")
    settings = Settings()
    assert (settings.ack, settings.hold_ttl_max_s) == ("redis", 2000)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("SHARDS", "2", "must be 1"),
        ("ACK", "maybe", "broker"),
        ("HOLD_TTL_DEFAULT_S", "0", "greater than or equal to 1"),
        ("HOLD_TTL_DEFAULT_S", "90000", "HOLD_TTL_MAX_S"),
        ("AMQP_HEARTBEAT_S", "60", "less than or equal to 15"),
        ("UNCONFIRMED_BYTES_SETTLE_MAX", "1024", "must not be below"),
        ("LOG_LEVEL", "loud", "debug"),
    ],
)
def test_what_cannot_work_does_not_start(monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str) -> None:
    monkeypatch.setenv(f"STOCKGATE_{name}", value)
    with pytest.raises(ValidationError, match=says):
        Settings()


def test_addresses_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REDIS", "MYSQL", "AMQP"):
        monkeypatch.setenv(f"STOCKGATE_{name}_URL", f"{name.lower()}://user:sesame@host/0")
    settings = Settings()
    assert "sesame" not in repr(settings) + str(settings) + settings.model_dump_json()
    assert settings.redis_url.get_secret_value() == "redis://user:sesame@host/0"


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().ack = "redis"  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("name", "url", "says"),
    [
        ("REDIS", "redis://10.0.0.5:6379/0", "STOCKGATE_REDIS_URL has no password"),
        ("REDIS", "rediss://stockgate@redis.internal/0", "STOCKGATE_REDIS_URL has no password"),
        ("MYSQL", "mysql://stockgate@10.0.0.5/stockgate", "STOCKGATE_MYSQL_URL has no password"),
        ("AMQP", "amqp://rabbit.internal/stockgate", "STOCKGATE_AMQP_URL has no password"),
        ("AMQP", "amqp://guest:guest@rabbit.internal/stockgate", "logs in as guest"),
        ("AMQP", "amqps://stockgate:guest@[2001:db8::1]/stockgate", "logs in as guest"),
        ("REDIS", "http://127.0.0.1/0", "must begin with redis:// or rediss://"),
        ("MYSQL", "postgres://127.0.0.1/0", "must begin with mysql:// or mysqls://"),
        ("AMQP", "amqps://u:sesame@host/v?no_verify_ssl=1", "no_verify_ssl: certificates are set by"),
        ("REDIS", "rediss://u:sesame@host/0?ssl_cert_reqs=none", "ssl_cert_reqs: certificates are set by"),
    ],
)
def test_an_address_that_is_not_safe_does_not_start(
    monkeypatch: pytest.MonkeyPatch, name: str, url: str, says: str
) -> None:
    monkeypatch.setenv(f"STOCKGATE_{name}_URL", url)
    with pytest.raises(ValidationError, match=says) as refusal:
        Settings()
    assert "sesame" not in str(refusal.value)


def test_logins_by_default_are_well_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, url in (("REDIS", "redis://[::1]/0"), ("AMQP", "amqp://guest:guest@localhost/"), ("MYSQL", "mysql:///x")):
        monkeypatch.setenv(f"STOCKGATE_{name}_URL", url)
    Settings()


def test_certificates_without_an_encrypted_address_do_not_start(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.touch()
    with pytest.raises(ValidationError, match="no address is encrypted"):
        Settings(tls_ca_file=file)
    with pytest.raises(ValidationError, match="STOCKGATE_TLS_CERT_FILE"):
        Settings(tls_key_file=file)
    with pytest.raises(ValidationError, match="not point to a file"):
        Settings(tls_ca_file=tmp_path / "none.pem")


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode_wish": "db"},
        {"mode_wish": "db", "mode_wish_at": "2026-12-24T18:00:00Z"},
        {"mode_wish_at": "2026-12-24T18:00:00Z", "mode_wish_reason": "why"},
        {"mode_wish": "db", "mode_wish_at": "2026-12-24T18:00:00", "mode_wish_reason": "in which zone?"},
        {"mode_wish": "cold", "mode_wish_at": "2026-12-24T18:00:00Z", "mode_wish_reason": "why"},
        {"mode_wish": "db", "mode_wish_at": "2026-12-24T18:00:00Z", "mode_wish_reason": "a\nb"},
    ],
)
def test_a_wished_mode_has_a_time_and_a_reason(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(wrong)
    right = {"mode_wish": "db", "mode_wish_at": "2026-12-24T18:00:00Z", "mode_wish_reason": "the window of Thursday"}
    assert Settings.model_validate(right).mode_wish == "db"
