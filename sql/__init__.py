"""The SQL statements and migrations, one statement to a file, and their loader.

Imports only `kernel`.
"""

from functools import cache
from importlib.resources import files

from kernel.mysql_door import Statement


@cache
def load(name: str) -> Statement:
    """The statement in `sql/<name>.sql` without its header; raises FileNotFoundError if there is none.

    This is the only place where text becomes a `Statement`, so that no other text reaches the server. A statement that
    is run for many rows keeps the form `INSERT … VALUES (%s, …)`, which the driver sends as one.
    """
    lines = files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8").splitlines()
    body = "\n".join(line for line in lines if not line.startswith("--"))
    return Statement(body.strip().removesuffix(";"))
