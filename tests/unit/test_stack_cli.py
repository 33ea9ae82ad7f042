"""The command line: exit codes and messages, as a shell sees them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def stockgate(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stockgate", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_names_every_command(tmp_path: Path) -> None:
    shown = stockgate("--help", cwd=tmp_path, TERMINAL_WIDTH="200")
    assert shown.returncode == 0
    for command in ("up", "down", "demo", "migrate", "gateway", "persist-worker", "reconciler", "leader", "audit"):
        assert f" {command} " in shown.stdout


@pytest.mark.parametrize("arguments", [("up", "--no-such-option"), ("no-such-command",), ("up", "--ack", "maybe")])
def test_wrong_usage_is_exit_code_2_with_a_message(arguments: tuple[str, ...], tmp_path: Path) -> None:
    refused = stockgate(*arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert "Error" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_down_without_a_stack_is_well(tmp_path: Path) -> None:
    answered = stockgate("down", cwd=tmp_path)
    assert (answered.returncode, answered.stdout) == (0, "no stack is running in .run\n")


def test_wrong_settings_are_named_without_their_values(tmp_path: Path) -> None:
    refused = stockgate("migrate", cwd=tmp_path, STOCKGATE_SHARDS="2", STOCKGATE_ACK="hunter2")
    assert refused.returncode == 1
    assert "STOCKGATE_SHARDS: " in refused.stderr
    assert "STOCKGATE_ACK: " in refused.stderr
    assert "hunter2" not in refused.stderr
    assert "Traceback" not in refused.stderr


def test_demo_without_a_stack_says_what_to_do(tmp_path: Path) -> None:
    refused = stockgate("demo", "--json", cwd=tmp_path)
    assert refused.returncode == 1
    assert "stockgate up" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_operating_commands_take_the_addresses_of_the_running_stack(tmp_path: Path) -> None:
    nobody = {"redis": "redis://127.0.0.1:1/0", "mysql": "mysql://u:p@127.0.0.1:1/x", "amqp": "amqp://127.0.0.1:1/x"}
    (tmp_path / ".run").mkdir()
    (tmp_path / ".run" / "stack.json").write_text(json.dumps(nobody))
    refused = stockgate("audit", cwd=tmp_path)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr, "a server that is away is told in one line"
