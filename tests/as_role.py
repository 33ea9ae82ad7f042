"""Settings of a test for one kind of process: the same servers, under the account that this process has in production."""

from pydantic import SecretStr

from kernel.settings import Settings
from stockgate.accounts import RoleName
from stockgate.servers import Servers


def as_role(servers: Servers, settings: Settings, role: RoleName) -> Settings:
    """The same settings with the role's logins; a server that it does not speak to gets an address where nobody is."""
    urls = {
        "redis": settings.redis_url.get_secret_value(),
        "mysql": settings.mysql_url.get_secret_value(),
        "amqp": settings.amqp_url.get_secret_value(),
    }
    nowhere = {"redis": "redis://127.0.0.1:1/0", "mysql": "mysql://127.0.0.1:1/x", "amqp": "amqp://127.0.0.1:1/x"}
    urls = nowhere | servers.as_role(role, urls)
    return settings.model_copy(update={f"{name}_url": SecretStr(url) for name, url in urls.items()})
