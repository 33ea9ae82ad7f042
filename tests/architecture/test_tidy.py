"""The rules that matter and that no linter knows: read from the files as they stand."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "kernel",
    "lua",
    "sql",
    "inventory",
    "gateway",
    "persist_worker",
    "reconciler",
    "supply",
    "product",
    "qc",
    "client",
    "stockgate",
    "loadtests",
    "observability",
)
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "service", "base", "common", "misc"}
LOCKS = ("requirements.lock", "requirements-dev.lock")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` for an attribute chain of names, otherwise the empty string."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def calls(path: Path) -> Iterator[tuple[int, str, ast.Call]]:
    """Every call in the file: line, dotted name of what is called, the node."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Call):
            yield node.lineno, dotted_name(node.func), node


# --- the house ---------------------------------------------------------------


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_says_what_it_holds(folder: str) -> None:
    docstring = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text()))
    assert docstring, f"{folder}/__init__.py needs a docstring that says what the folder holds"
    assert len(docstring) > 40


def test_packages_are_exactly_the_folders_of_the_architecture() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert tuple(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == FOLDERS
    assert project["tool"]["importlinter"]["root_packages"] == list(FOLDERS)
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert on_disk == set(FOLDERS)


def test_files_are_steps_or_things() -> None:
    vague = [p for p in python_files(*FOLDERS) if p.stem in VAGUE_NAMES]
    assert not vague, f"name the thing or the step: {[str(p.relative_to(ROOT)) for p in vague]}"


def test_every_make_target_has_a_help_line() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    without = [t for t in phony[1].split() if not re.search(rf"^{t}:.*## \S", makefile, re.MULTILINE)]
    assert not without


# --- dependencies -------------------------------------------------------------


@pytest.mark.parametrize("name", LOCKS)
def test_lock_names_versions_and_hashes_and_no_index(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(-i|--index|--extra-index|--find-links|-f)\b", text, re.MULTILINE)
    requirements = re.split(r"\n(?=[a-z0-9])", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    assert len(requirements) > 15
    for requirement in requirements:
        assert re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==\S+", requirement), requirement[:80]
        assert "--hash=sha256:" in requirement, requirement[:80]


def locked(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))


def test_lock_holds_every_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime = {re.split(r"[<>=~! \[;]", d)[0] for d in project["dependencies"]}
    dev = {re.split(r"[<>=~! \[;]", d)[0] for d in project["optional-dependencies"]["dev"]}
    assert runtime <= locked("requirements.lock").keys()
    assert runtime | dev <= locked("requirements-dev.lock").keys()


def test_both_locks_agree() -> None:
    dev = locked("requirements-dev.lock")
    differing = {n: v for n, v in locked("requirements.lock").items() if dev.get(n) != v}
    assert not differing


# --- forbidden calls ----------------------------------------------------------

FORBIDDEN_CALLS = {
    "asyncio.wait_for": "can lose a result that came at the same moment: asyncio.timeout()",
    "asyncio.ensure_future": "nobody waits for it: use a TaskGroup",
    "os.system": "goes through a shell",
}


@pytest.mark.parametrize("path", python_files(*FOLDERS), ids=lambda p: str(p.relative_to(ROOT)))
def test_no_forbidden_calls(path: Path) -> None:
    found = [f"line {n}: {c}: {FORBIDDEN_CALLS[c]}" for n, c, _ in calls(path) if c in FORBIDDEN_CALLS]
    assert not found, found


@pytest.mark.parametrize("path", python_files(*FOLDERS), ids=lambda p: str(p.relative_to(ROOT)))
def test_async_code_never_blocks_the_loop(path: Path) -> None:
    found: list[str] = []
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.AsyncFunctionDef):
            found += [
                f"line {node.lineno}: {dotted_name(node.func)}"
                for node in ast.walk(function)
                if isinstance(node, ast.Call)
                and dotted_name(node.func)
                in {"time.sleep", "subprocess.run", "subprocess.check_output", "subprocess.call"}
            ]
    assert not found, found


SQL_VERBS = re.compile(
    r"^\s*(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\S+\s+SET|DELETE\s+FROM)\s",
    re.IGNORECASE | re.DOTALL,
)


def built_sql(path: Path) -> list[str]:
    """Strings that are SQL and are put together in Python: f-strings, `%`, `+`, `.format()`."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        head: ast.expr | None = None
        if isinstance(node, ast.JoinedStr) and node.values:
            head = node.values[0]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
            head = node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            head = node.func.value if node.func.attr == "format" else None
        if (
            isinstance(node, ast.expr)
            and isinstance(head, ast.Constant)
            and isinstance(head.value, str)
            and SQL_VERBS.match(head.value + " ")
        ):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {head.value[:50]!r}")
    return found


def test_no_sql_is_put_together_in_python() -> None:
    found = [line for path in python_files(*FOLDERS) for line in built_sql(path)]
    assert not found, found


def test_the_search_for_built_sql_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    for text in (
        'f"SELECT a FROM t WHERE id = {x}"',
        '"DELETE FROM t WHERE id = %s" % x',
        '"UPDATE t SET a = " + x',
        '"INSERT INTO t VALUES ({})".format(x)',
    ):
        (tmp_path / "a.py").write_text(f"x = 1\ny = {text}\n")
        assert built_sql(tmp_path / "a.py"), text


# --- sql/ ---------------------------------------------------------------------

SQL_FILES = sorted((ROOT / "sql").rglob("*.sql"))
FORBIDDEN_SQL = {
    r"\bINSERT\s+IGNORE\b": "downgrades errors to warnings",
    r"\bREPLACE\s+INTO\b": "deletes the row first",
    r"\bRETURNING\b": "MySQL has no RETURNING",
    r"\bVALUES\s*\([^)]*\)\s*AS\s+new\b": "MariaDB has no row alias",
    r"\bFOR\s+SHARE\b": "MariaDB says LOCK IN SHARE MODE",
}


def without_comments(statement: str) -> str:
    return re.sub(r"--[^\n]*|/\*.*?\*/", "", statement, flags=re.DOTALL)


@pytest.mark.parametrize("path", SQL_FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_sql_keeps_to_what_both_servers_do(path: Path) -> None:
    text = without_comments(path.read_text())
    found = [why for pattern, why in FORBIDDEN_SQL.items() if re.search(pattern, text, re.IGNORECASE)]
    assert not found, found


@pytest.mark.parametrize(
    "path",
    [p for p in SQL_FILES if not {"migrations", "grants"} & set(p.parts)],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_sql_statement_has_its_two_header_lines_and_is_used(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) > 2
    assert all(re.match(r"-- \S", line) for line in lines[:2]), "two lines: what it does; its index or lock"
    statements = [s for s in without_comments(path.read_text()).split(";") if s.strip()]
    assert len(statements) == 1, "one statement to a file"
    name = re.compile(rf"[\"'/.]{re.escape(path.stem)}(\.sql)?\b|\b{re.escape(path.stem.upper())}\b")
    users = [p for p in python_files(*FOLDERS) if name.search(p.read_text())]
    assert users, f"no Python file names {path.stem}"


# --- lua/ ---------------------------------------------------------------------

LUA_FILES = sorted((ROOT / "lua").rglob("*.lua"))


LUA_READS = frozenset(
    [
        "GET",
        "MGET",
        "STRLEN",
        "HGET",
        "HMGET",
        "HGETALL",
        "HEXISTS",
        "HLEN",
        "EXISTS",
        "SISMEMBER",
        "SMISMEMBER",
        "SCARD",
        "XRANGE",
        "XREVRANGE",
        "XLEN",
        "ZRANGE",
        "ZSCORE",
        "ZCARD",
        "TYPE",
        "TIME",
    ]
)


def lua_header(path: Path) -> str:
    """The comment lines at the top, after an optional `#!lua` line."""
    lines = path.read_text().splitlines()
    if lines and lines[0].startswith("#!"):
        lines = lines[1:]
    header: list[str] = []
    for line in lines:
        if not line.startswith("--"):
            break
        header.append(line.removeprefix("--").strip())
    return "\n".join(header)


@pytest.mark.parametrize("path", LUA_FILES, ids=lambda p: p.name)
def test_lua_header_names_purpose_keys_arguments_and_returns(path: Path) -> None:
    header = lua_header(path)
    assert re.match(r"\w.{15,}", header), "the first line says what the script is for"
    for word in ("KEYS", "ARGV"):
        assert word in header, f"the header names {word} (or says there are none)"
    assert re.search(r"\breturns?\b", header, re.IGNORECASE), "the header says what is returned"


def highest_index(word: str, text: str) -> int:
    return max((int(n) for n in re.findall(rf"\b{word}\[(\d+)\]", text)), default=0)


@pytest.mark.parametrize("path", LUA_FILES, ids=lambda p: p.name)
def test_lua_header_names_every_key_and_argument_used(path: Path) -> None:
    header = lua_header(path)
    code = "\n".join(re.sub(r"--.*", "", line) for line in path.read_text().splitlines())
    for word in ("KEYS", "ARGV"):
        assert highest_index(word, header) >= highest_index(word, code), f"{word} beyond the header"


@pytest.mark.parametrize("path", LUA_FILES, ids=lambda p: p.name)
def test_lua_never_prints_numbers_through_a_double(path: Path) -> None:
    code = "\n".join(re.sub(r"--.*", "", line) for line in path.read_text().splitlines())
    assert "cjson.encode" not in code, "cjson keeps 14 digits"
    pcalls = re.findall(r"redis\.pcall\(\s*['\"]?(\w+)", code)
    assert set(pcalls) <= LUA_READS, "pcall hides a refused write"
    assert not re.search(r"\bmath\.random\b|\bos\.time\b", code)


# --- text ---------------------------------------------------------------------


def test_every_test_folder_is_known() -> None:
    known = {"unit", "lua", "sql", "integration", "flow", "architecture", "model"}
    found = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").glob("*/test_*.py")}
    assert found <= known
