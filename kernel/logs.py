"""Structured logs on standard error: one JSON object per line, or coloured text for people.

What a key is named decides whether its value is shown: secrets never are, whoever logs them. The drivers' own loggers
are held at warnings and above, because their debug lines print message bodies and parameters.
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, cast

import orjson
import structlog
from pydantic import SecretBytes, SecretStr
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from kernel.settings import Settings

HIDDEN: Final = "***"
_SECRET_NAME: Final = re.compile(
    r"password|passwd|secret|token|authorization|cookie|credential|api_?key|private_?key|dsn|^codes$|voucher",
    re.IGNORECASE,
)
_USER_INFO: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)[^\s/@]+@", re.IGNORECASE)
_BEARER: Final = re.compile(r"(?P<word>\bbearer\s+)[^\s\"',]+", re.IGNORECASE)
_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_QUIET_LOGGERS: Final = {
    "aiormq": logging.CRITICAL,  # its doors' failures are raised; it also logs them, with tracebacks
    "aio_pika": logging.CRITICAL,
    "asyncmy": logging.WARNING,
    "asyncio": logging.WARNING,
    "uvicorn.access": logging.CRITICAL,  # query strings; requests are counted by metrics instead
}


def _redacted(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return _BEARER.sub(rf"\g<word>{HIDDEN}", _USER_INFO.sub(rf"\g<scheme>{HIDDEN}@", value))
    if isinstance(value, SecretStr | SecretBytes):
        return HIDDEN
    if isinstance(value, bytes | bytearray):
        # Bodies of messages and requests are bytes: their length says enough.
        return f"<{len(value)} bytes>"
    if depth < 4:
        if isinstance(value, Mapping):
            items = cast("Mapping[Any, Any]", value).items()
            return {key: HIDDEN if _is_secret(key) else _redacted(item, depth + 1) for key, item in items}
        if isinstance(value, list | tuple):
            return [_redacted(item, depth + 1) for item in cast("list[Any] | tuple[Any, ...]", value)]
    return value


def _is_secret(key: object) -> bool:
    return isinstance(key, str) and _SECRET_NAME.search(key) is not None


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """A structlog processor: hide secrets by the names of keys, and user:password@ and bearer tokens in any text."""
    for key, value in event.items():
        event[key] = HIDDEN if _is_secret(key) else _redacted(value)
    return event


def _as_json(_logger: WrappedLogger, _method: str, event: MutableMapping[str, Any]) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def configure(settings: Settings, process: str) -> None:
    """Set up structlog and the standard library's logging for this process, once, in its entry point."""
    level = _LEVELS[settings.log_level]
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _adding_process(process),
        # No locals in tracebacks: they hold bodies, parameters and keys.
        structlog.processors.format_exc_info,
        redact,
    ]
    renderer: Processor = _as_json if settings.log_json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[_without_record, renderer], foreign_pre_chain=shared)
    )
    logging.basicConfig(handlers=[handler], level=max(level, logging.INFO), force=True)
    for name, quiet in _QUIET_LOGGERS.items():
        logging.getLogger(name).setLevel(quiet)


def _adding_process(process: str) -> Processor:
    def add_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["process"] = process
        return event

    return add_process


def _without_record(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event.pop("_record", None)
    event.pop("_from_structlog", None)
    return event


Logger = FilteringBoundLogger
"""What a component takes as an argument, so that its lines carry what its owner bound."""


def get_logger(**bound: object) -> Logger:
    """A logger that carries `bound` and what `bind_request` bound: `logger.info("epoch_opened", shard=0, epoch=7)`."""
    return cast("Logger", structlog.get_logger(**bound))


def bind_request(request_id: str) -> None:
    """Name the request in every line that this task, and what it calls, logs from now on."""
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=request_id)
