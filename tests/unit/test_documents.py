"""The reader of documents: which blocks are run, and when an output is what a page claims."""

import re
from pathlib import Path

import pytest

from tests.documents import ROOT, Block, executed_blocks, run_blocks, says, wrong_with

PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
PAGE = """# A page

```console
$ make run
```

```sh
greet() { echo "hello $1"; }
greet world
```

```text
hello …
```

```python
print(1 + 1)
```

Between the two stands a word.

```text
3
```
"""


@pytest.fixture
def blocks(tmp_path: Path) -> list[Block]:
    (tmp_path / "page.md").write_text(PAGE)
    return executed_blocks(tmp_path / "page.md")


def test_what_is_run_and_what_is_its_output(blocks: list[Block]) -> None:
    assert [(block.place, block.language, block.claimed) for block in blocks] == [
        ("page.md:7", "sh", "hello …\n"),
        ("page.md:16", "python", None),
    ]


def test_blocks_share_one_shell(tmp_path: Path, blocks: list[Block]) -> None:
    again = Block("again", "sh", "greet again\n", "hello again\n")
    results = run_blocks([*blocks, again], tmp_path, {})
    assert results == [(0, "hello world\n"), (0, "2\n"), (0, "hello again\n")]
    assert wrong_with([*blocks, again], results) == []


def test_a_failing_block_another_output_and_a_block_that_is_not_reached_are_wrong(tmp_path: Path) -> None:
    blocks = [
        Block("one", "sh", "echo oh; false\n", None),
        Block("two", "sh", "echo no\n", "yes\n"),
        Block("three", "sh", "exit 0\n", None),
        Block("four", "sh", "echo late\n", None),
    ]
    wrong = wrong_with(blocks, run_blocks(blocks, tmp_path, {}))
    assert [text.partition(":")[0] for text in wrong] == ["three", "four", "one", "two"]


@pytest.mark.parametrize(
    ("claimed", "output", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\nb\nc\n", False),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nd\n", True),
        ("a\n…\nd\n", "a\nb\n", False),
        ('{"id":…,"ok":true}\n', '{"id":17,"ok":true}\r\n', True),
        ('{"id":…,"ok":true}\n', '{"id":17,"ok":false}\n', False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_an_output_is_what_the_page_claims(claimed: str, output: str, same: bool) -> None:
    assert says(claimed, output) is same


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.name)
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]*)?\)", text):
        linked = (page.parent / target) if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor and linked.suffix == ".md":
            assert anchor[1:] in anchors(linked), f"{page.name} links to {target}{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors that its headings have."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
