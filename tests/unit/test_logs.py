"""Logs: one JSON object a line, requests named, and no secret in any of them, whoever logs it and however."""

import json
import logging
from collections.abc import Generator
from typing import Any

import pytest
import structlog
from pydantic import SecretStr

from kernel.errors import StoreUnavailable
from kernel.logs import HIDDEN, bind_request, configure, get_logger
from kernel.settings import Settings

SECRET = "sesame-open-please"


@pytest.fixture(autouse=True)
def _restored() -> Generator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out, error = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in error.splitlines()]


def test_one_object_a_line_with_time_process_and_request(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(), "gateway")
    bind_request("request-7")
    get_logger(shard=0).info("epoch_opened", epoch=7)
    logging.getLogger("somebody.else").warning("it is %s", "late")
    ours, theirs = lines(capsys)
    assert {
        "event": "epoch_opened",
        "epoch": 7,
        "shard": 0,
        "process": "gateway",
        "level": "info",
    }.items() <= ours.items()
    assert ours["request_id"] == theirs["request_id"] == "request-7"
    assert {"event": "it is late", "process": "gateway", "level": "warning"}.items() <= theirs.items()
    assert ours["timestamp"].endswith("Z")


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_level="warning"), "gateway")
    get_logger().info("not this")
    get_logger().warning("this")
    assert [line["event"] for line in lines(capsys)] == ["this"]


@pytest.mark.parametrize(
    "fields",
    [
        {"password": SECRET},
        {"authorization": f"Bearer {SECRET}"},
        {"api_key": SECRET},
        {"headers": {"Authorization": SECRET, "Cookie": SECRET}},
        {"nested": [{"lease_token": SECRET}]},
        {"codes": [SECRET, SECRET]},
        {"voucher_code": SECRET},
        {"mysql_url": f"mysql://stockgate:{SECRET}@127.0.0.1/stockgate"},
        {"reason": f"cannot reach redis://:{SECRET}@127.0.0.1:6379/0, amqp://u:{SECRET}@h/v"},
        {"header": f"bearer {SECRET}"},
        {"value": SecretStr(SECRET)},
        {"settings": Settings(redis_url=SecretStr(f"redis://:{SECRET}@127.0.0.1/0"))},
        {"body": f"{SECRET}".encode()},
    ],
)
@pytest.mark.parametrize("log_json", [True, False])
def test_no_secret_is_shown(capsys: pytest.CaptureFixture[str], fields: dict[str, Any], log_json: bool) -> None:
    configure(Settings(log_json=log_json), "gateway")
    get_logger().error("something happened", **fields)
    logging.getLogger("driver").error("something happened: %s", fields if "reason" in fields else HIDDEN)
    _, error = capsys.readouterr()
    assert "something happened" in error
    assert SECRET not in error


def test_tracebacks_show_neither_locals_nor_addresses(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(), "gateway")

    def fails(password: str) -> None:
        raise StoreUnavailable("mysql", "unknown", f"mysql://stockgate:{password}@127.0.0.1")

    try:
        fails(SECRET)
    except StoreUnavailable:
        get_logger().exception("store_failed")
        logging.getLogger("driver").exception("failed")
    ours, theirs = lines(capsys)
    assert "StoreUnavailable" in ours["exception"]
    assert "StoreUnavailable" in theirs["exception"]
    assert SECRET not in json.dumps([ours, theirs])


def test_drivers_may_not_print_bodies_even_in_debug(capsys: pytest.CaptureFixture[str]) -> None:
    configure(Settings(log_level="debug"), "gateway")
    for name in ("aiormq.connection", "aio_pika.exchange", "asyncmy", "redis"):
        logging.getLogger(name).debug("Publishing message %r", SECRET)
    for name in ("uvicorn.access",):
        logging.getLogger(name).info("GET /?code=%s", SECRET)
    get_logger().debug("ours may")
    assert [line["event"] for line in lines(capsys)] == ["ours may"]
