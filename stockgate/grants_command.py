"""What `stockgate grants` prints: the rights of our processes in each server's own words, for whoever runs the servers."""

from typing import Final, Literal

from sql.grant import read_grants
from stockgate.accounts import REDIS_RULE, REDIS_USER, ROLES

ServerName = Literal["mysql", "redis", "rabbitmq"]

TO_FILL_IN: Final = "…"
"""Stands where an operator's own secret goes."""


def grants_text(server: ServerName) -> str:
    """Lines for the server's client; passwords are left out."""
    match server:
        case "mysql":
            return _mysql()
        case "redis":
            return f"ACL SETUSER {REDIS_USER} reset on >{TO_FILL_IN} {' '.join(REDIS_RULE)}\n"
        case "rabbitmq":
            return "".join(
                f"rabbitmqctl set_permissions -p stockgate {role.account} "
                f"'{role.queue.configure}' '{role.queue.write}' '{role.queue.read}'\n"
                for role in ROLES.values()
                if role.queue is not None
            )


def _mysql() -> str:
    grants = read_grants()
    parts: list[str] = []
    for role in ROLES.values():
        # Accounts are made once, by hand: a password does not belong into what is printed and piped.
        parts.append(f"-- {role.name}: CREATE USER '{role.account}' IDENTIFIED BY '{TO_FILL_IN}' REQUIRE SSL;\n")
        parts += [f"{statement};\n" for statement in grants[role.name]]
    return "".join(parts)


def run(server: ServerName) -> int:
    """Print; exit code 0."""
    print(grants_text(server), end="")  # noqa: T201 -- the command's answer
    return 0
