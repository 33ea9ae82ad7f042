"""Which servers a command speaks to, said without their passwords, and refused where nothing is named."""

from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr

from kernel.settings import Settings
from stockgate.processes import StackError

NAMED_BY = {"redis": "redis_url", "mysql": "mysql_url", "rabbitmq": "amqp_url"}
"""The setting that names each store."""


def variable(store: str) -> str:
    """The environment variable with a store's address."""
    return f"STOCKGATE_{NAMED_BY[store].upper()}"


def address(settings: Settings, store: str) -> str:
    """Where a store is, as its setting says it, without the login."""
    secret: SecretStr = getattr(settings, NAMED_BY[store])
    url = urlsplit(secret.get_secret_value())
    return urlunsplit(url._replace(netloc=url.netloc.rpartition("@")[2], query=""))


def require_addresses(settings: Settings, run_dir: Path) -> None:
    """Raise StackError where neither a running stack nor a setting names any server: a default would be a guess."""
    if not settings.model_fields_set & set(NAMED_BY.values()):
        named = ", ".join(variable(store) for store in NAMED_BY)
        raise StackError(
            f"no stack runs in {run_dir} (`stockgate up` starts one, --run-dir names another place), "
            f"and the environment names no servers ({named})"
        )
