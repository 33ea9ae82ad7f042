"""What each kind of process needs at MySQL, read from its imports and from the statements that they load."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import sqlglot
from sqlglot import exp

import sql
from stockgate.accounts import ROLES

ROOT = Path(sql.__file__).parents[1]
STATEMENT = re.compile(r'\bsql\.load\("(\w+)"\)')

ENTRY_POINTS = {
    "gateway": ("gateway.main",),
    "leader": ("inventory.leader_main",),
    "persist-worker": ("persist_worker.main",),
    "reconciler": ("reconciler.main",),
}

OWNERS = {"sql.migrate", "sql.grant"}
"""Run under the account that the tables belong to; others import them for what they know, not for what they do."""
COMMANDS = re.findall(r'\bload\("([\w.]+)"', (ROOT / "stockgate" / "cli.py").read_text())
# An operator is whoever types a command that is no process of ours.
ENTRY_POINTS["operator"] = tuple(
    {*COMMANDS} - {name for names in ENTRY_POINTS.values() for name in names} - OWNERS - {"kernel.settings"}
)

NEVER_RUN = {
    # A leader writes the rows of its own doing in the operators' audit table, and shows none.
    "leader": {"select_operator_actions", "select_operator_changes", "insert_reconcile_task_outcome"},
    # A gateway leaves a task and reads it; that the reconciler's half lives in the same file gives it no rights.
    "gateway": {
        "select_reconcile_tasks_to_run",
        "update_reconcile_task_claimed",
        "update_reconcile_task_done",
        "update_periodic_reconcile_task",
    },
    # Who asks for the status reads what the last comparison found, from that same file.
    "operator": {
        "insert_reconcile_task",
        "insert_reconcile_task_outcome",
        "select_reconcile_tasks_to_run",
        "update_reconcile_task_claimed",
        "update_reconcile_task_done",
        "update_periodic_reconcile_task",
    },
}
"""Statements that a process imports and never runs."""

Privileges = dict[tuple[str, str], set[str] | None]
"""(table, verb) → columns for UPDATE, None for the whole table."""


def _file(module: str) -> Path | None:
    path = ROOT / module.replace(".", "/")
    return next((found for found in (path.with_suffix(".py"), path / "__init__.py") if found.exists()), None)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(*entry_points: str) -> dict[str, Path]:
    """All modules of ours that an entry point imports, directly or not."""
    found: dict[str, Path] = {}
    waiting = list(entry_points)
    while waiting:
        module = waiting.pop()
        path = _file(module)
        if module not in found and path is not None:
            found[module] = path
            waiting += _imports(path)
    return found


def statements(role: str) -> set[str]:
    """Names of the statements that this kind of process runs."""
    texts = (path.read_text() for module, path in modules(*ENTRY_POINTS[role]).items() if module not in OWNERS)
    return {name for text in texts for name in STATEMENT.findall(text)} - NEVER_RUN.get(role, set())


def _target(statement: exp.Expr) -> str:
    table = statement.find(exp.Table)
    assert table is not None
    return table.name


@cache
def needs(name: str) -> tuple[tuple[tuple[str, str], frozenset[str] | None], ...]:
    """What one statement needs: ((table, verb), columns)."""
    text = re.sub(r"\bIN %s", "IN (1)", sql.load(name)).replace("%s", "1").replace("%%", "%")
    statement = sqlglot.parse_one(text, read="mysql")
    needed: Privileges = {}
    if isinstance(statement, exp.Insert):
        target = _target(statement)
        needed[target, "INSERT"] = None
        if statement.args.get("conflict"):
            # MariaDB asks for the right to update the columns that are only inserted as well.
            needed[target, "UPDATE"] = needed[target, "SELECT"] = None
    elif isinstance(statement, exp.Update):
        target = _target(statement)
        needed[target, "UPDATE"] = {assigned.this.name for assigned in statement.expressions}
        needed[target, "SELECT"] = None
    elif isinstance(statement, exp.Delete):
        needed[_target(statement), "DELETE"] = None
        needed[_target(statement), "SELECT"] = None
    else:
        assert isinstance(statement, exp.Select), f"{name}: not a statement of a process"
        local = {cte.alias for cte in statement.find_all(exp.CTE)}
        for table in statement.find_all(exp.Table):
            if table.name not in local and not table.db:
                needed[table.name, "SELECT"] = None
        if statement.args.get("locks"):
            # MySQL asks for the right to change what is locked.
            needed.setdefault((_target(statement), "UPDATE"), set())
    return tuple((place, None if columns is None else frozenset(columns)) for place, columns in needed.items())


def needed(role: str) -> Privileges:
    """What the statements of this kind of process need, together."""
    found: Privileges = {}
    for name in statements(role):
        for place, columns in needs(name):
            if columns is None:
                found[place] = None
            elif place not in found or found[place] is not None:
                found[place] = (found.get(place) or set()) | columns
    return found


def as_grants(role: str, account: str) -> str:
    """The statements of `sql/grants/<role>.sql`, one for each table."""
    tables: defaultdict[str, list[str]] = defaultdict(list)
    for table, verb in sorted(found := needed(role)):
        columns = found[table, verb]
        tables[table].append(verb if columns is None else f"{verb} ({', '.join(sorted(columns))})")
    return "".join(f"GRANT {', '.join(rights)} ON {table} TO '{account}';\n" for table, rights in tables.items())


HEADER = "-- What the account of the {role} may do, as its statements need it; `python -m tests.sql.privileges` writes it anew.\n"


def grants_file(role: str, account: str) -> str:
    """The whole text of `sql/grants/<role>.sql`."""
    return HEADER.format(role=role) + as_grants(role, account)


def write_files() -> None:
    """Bring all files in line with the statements."""
    for role in ROLES.values():
        (ROOT / "sql" / "grants" / f"{role.name}.sql").write_text(grants_file(role.name, role.account))


if __name__ == "__main__":
    write_files()
