"""The files themselves: includes, headers, shared tables, and what luacheck says of whole scripts."""

import re
import subprocess
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec
import pytest

import lua
from inventory import moves, outcomes
from inventory.moves import MOVES, Move
from kernel import limits

FOLDER = Path(lua.__file__).parent
SCRIPTS = lua.names()
PARTS = sorted({path.stem for path in FOLDER.glob("*.lua")} - set(SCRIPTS))


def table_of(client: Any, part: str, expression: str) -> object:
    return msgspec.msgpack.decode(client.eval(lua.resolve(part) + f"\nreturn cmsgpack.pack({expression})", 0))


def numbers(enum: type[IntEnum]) -> dict[str, int]:
    return {member.name: int(member) for member in enum}


def test_moves_and_states_have_the_same_numbers_in_lua(client: Any) -> None:
    named = table_of(client, "moves", "MOVE")
    assert named == {k: v for k, v in numbers(Move).items() if k != "REJECTED"}
    assert table_of(client, "moves", "STATE") == numbers(moves.LineState)


def test_the_table_of_moves_is_the_same_in_lua(client: Any) -> None:
    rules = table_of(client, "moves", "RULES")
    assert isinstance(rules, dict)
    assert {Move(kind): (r["source"], r["target"], tuple(r["signs"])) for kind, r in rules.items()} == {
        kind: (int(rule.source), int(rule.target), tuple(rule.signs)) for kind, rule in MOVES.items()
    }
    for kind, rule in rules.items():
        negative = [place for place, sign in enumerate(rule["signs"], start=1) if sign < 0]
        assert negative == ([rule["taken_from"]] if "taken_from" in rule else []), Move(kind)


def test_outcomes_and_statuses_have_the_same_numbers_in_lua(client: Any) -> None:
    assert table_of(client, "outcomes", "OUTCOME") == numbers(outcomes.Outcome)
    status = table_of(client, "outcomes", "STATUS")
    assert status == numbers(outcomes.CallStatus)
    assert isinstance(status, dict)
    refused = table_of(client, "outcomes", "REFUSED")
    assert isinstance(refused, dict)
    assert all(status[name] == -code for name, code in refused.items() if name in status)


def test_limits_are_the_same_in_lua() -> None:
    found = dict(re.findall(r"^local (\w+_MAX) = (\d+)$", lua.resolve("reserve"), re.MULTILINE))
    assert int(found["QTY_MAX"]) == limits.QTY_MAX
    assert int(found["QUANTITY_TOTAL_MAX"]) == limits.QUANTITY_TOTAL_MAX
    assert int(found["EXACT_MAX"]) == limits.EXACT_INTEGER_MAX
    assert int(found["CALL_LINES_MAX"]) == limits.DECIDE_LINES_MAX
    assert int(found["CALL_LINES_MAX"]) >= limits.BATCH_LINES_MAX
    assert int(found["CALL_LINES_MAX"]) >= limits.BATCH_OPERATIONS_MAX


# --- the loader ---


def test_parts_cannot_be_run_and_unknown_names_are_refused() -> None:
    for part in PARTS:
        with pytest.raises(ValueError, match="part"):
            lua.load(part)
    with pytest.raises(FileNotFoundError):
        lua.load("no_such_script")
    with pytest.raises(ValueError, match="not a name"):
        lua.load("../reserve")


def test_every_part_is_included_somewhere_and_once_in_a_script() -> None:
    used: set[str] = set()
    for name in SCRIPTS:
        source = lua.load(name).source
        assert "@include" not in source
        assert source.count("#!lua") == 1
        for part in PARTS:
            body = (FOLDER / f"{part}.lua").read_text()
            text = re.sub(r'^--- @include ".*"\n', "", body, flags=re.MULTILINE).splitlines()[0]
            assert source.count(text) <= 1, f"{part} stands twice in {name}"
            if text in source:
                used.add(part)
    assert used == set(PARTS)


def test_redis_knows_a_script_by_the_sha_of_its_source(client: Any) -> None:
    for name in SCRIPTS:
        script = lua.load(name)
        assert script.name == name
        assert client.script_load(script.source) == script.sha


# --- headers ---


def header(name: str) -> str:
    lines = (FOLDER / f"{name}.lua").read_text().splitlines()[1:]
    end = next(i for i, line in enumerate(lines) if not line.startswith("--"))
    return " ".join(line.removeprefix("--").strip() for line in lines[:end])


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_says_which_keys_and_arguments_a_script_uses(name: str) -> None:
    text = header(name)
    code = re.sub(r"--.*", "", lua.load(name).source)
    for word in ("KEYS", "ARGV"):
        named = {int(n) for n in re.findall(rf"\b{word}\[(\d+)", text)}
        open_ended = re.search(rf"{word}\[(\d+)…\]", text)
        assert named == set(range(1, max(named) + 1)), f"{word} are numbered without a gap"
        used = {int(n) for n in re.findall(rf"\b{word}\[(\d+)\]", code)}
        closed = named - {int(open_ended[1])} if open_ended else named
        assert used == closed, f"{word} named and used differ"
        computed = re.findall(rf"\b{word}\[([^\d\]][^\]]*|\d+ \+ [^\]]*)\]|#{word}\b", code)
        if name not in {"reserve", "settle"}:
            assert bool(computed) == bool(open_ended), f"{word} reached by a computed index"


@pytest.mark.parametrize("name", SCRIPTS)
def test_only_what_may_take_memory_is_refused_by_a_full_server(name: str) -> None:
    first = lua.load(name).source.splitlines()[0]
    if name in {"reserve", "load_keys", "load_orders", "fill_filter"}:
        assert first == "#!lua"
    elif name in {"ask_confirmed", "read_keys", "check_chain"}:
        assert first == "#!lua flags=no-writes"
    else:
        assert first == "#!lua flags=allow-oom"


@pytest.mark.parametrize("name", SCRIPTS)
def test_luacheck_finds_nothing_in_a_whole_script(name: str) -> None:
    # Unused functions (211) come with a shared part; anything else would be a slip.
    globals_known = ["--std", "lua51", "--read-globals", "KEYS", "ARGV", "redis", "cmsgpack"]
    command = ["luacheck", "-q", "--no-config", "--no-max-line-length", *globals_known, "--ignore", "211", "--", "-"]
    done = subprocess.run(command, input=lua.load(name).source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_no_number_becomes_text_but_through_digits() -> None:
    for path in FOLDER.glob("*.lua"):
        code = re.sub(r"--.*", "", path.read_text())
        assert "tostring(" not in code, path.name
        assert not re.search(r"#\w+ \.\.|\.\. #\w+|\.\. \d|\d \.\.", code), path.name
