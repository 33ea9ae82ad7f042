"""What the pages say is so: their commands are typed as printed against a stack that was started as they say."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockgate.ports import choose_port
from tests.documents import ROOT, executed_blocks, run_blocks, wrong_with

PAGES = ("README.md", "docs/order-services.md", "docs/operators.md")
BLOCKS_MIN = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that looks like a checkout after `make run`: an environment, a client that is installed, a running stack."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / ".venv").symlink_to(Path(sys.prefix))
    (folder / "stockgate_client").symlink_to(ROOT / "client")
    command = [sys.executable, "-m", "stockgate"]
    try:
        subprocess.run(
            [*command, "up", "--detach", "--port", str(choose_port(set()))], cwd=folder, check=True, timeout=200
        )
        yield folder
    finally:
        subprocess.run([*command, "down"], cwd=folder, check=True, timeout=100)


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_shows_comes_out_as_it_says(name: str, folder: Path) -> None:
    blocks = executed_blocks(ROOT / name)
    assert len(blocks) >= BLOCKS_MIN, "the page is read as a test reads it"
    environment = {"COLUMNS": "160", "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    wrong = wrong_with(blocks, run_blocks(blocks, folder, environment))
    assert not wrong, "\n\n".join(wrong)
