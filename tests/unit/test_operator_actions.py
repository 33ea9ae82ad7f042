"""The pure parts of the operators' audit table: reasons, approvals, cursors, lines for a terminal."""

from typing import Any

import pytest

from inventory.operator_actions import BadCursor, BadReason, _places, check_reason, split_approval, with_approval
from stockgate.actions_command import section
from stockgate.sections import plain_lines


@pytest.mark.parametrize("reason", ["", "   ", "x" * 201, "a\nb", "a\x1b[31mb", "a\u009bb", "a\u200bb"])
def test_a_reason_that_nobody_can_read_is_refused(reason: str) -> None:
    with pytest.raises(BadReason):
        check_reason(reason)


@pytest.mark.parametrize("reason", ["x", "x" * 200, "délivré: 3 Stück, 盘点"])
def test_a_reason_is_what_people_write(reason: str) -> None:
    assert check_reason(f" {reason} ") == reason


def test_an_approval_comes_back_out_of_the_reason() -> None:
    assert split_approval(with_approval("counted", "A-7")) == ("counted", "A-7")
    assert split_approval(with_approval("counted", None)) == ("counted", "")
    assert split_approval(with_approval("(approval pending) counted", ")(")) == ("(approval pending) counted", ")(")


@pytest.mark.parametrize("reason", ["counted (approval A-7)", "x (approval ))"])
def test_nobody_writes_an_approval_that_he_was_not_given(reason: str) -> None:
    with pytest.raises(BadReason):
        with_approval(reason, None)
    with pytest.raises(BadReason):
        with_approval(reason, "B-1")


@pytest.mark.parametrize("cursor", ["1", "1.2.3", "a.b", "1.-2", "1. 2", "1.99999999999999999", ".", "\u0661.\u0662"])
def test_a_cursor_that_no_page_gave_is_refused(cursor: str) -> None:
    with pytest.raises(BadCursor):
        _places(cursor)


def test_a_line_of_the_listing_holds_nothing_that_moves_the_cursor() -> None:
    action: dict[str, Any] = {
        "at": "2026-01-02T03:04:05.678Z",
        "actor": "ops",
        "action": "correct",
        "dry_run": True,
        "reconcile_task": None,
        "target": "[red]key[/red]",
        "reason": "\x1b[2J\tgone",
        "approval_no": "",
        "outcome": "STOPPED",
        "detail": "no",
        "before": "",
        "after": "",
    }
    lines = plain_lines([section({"actions": [action], "next_before": "4.5"})])
    assert lines[1] == "more: stockgate actions --before 4.5"
    assert lines[3:] == [
        "2026-01-02 03:04:05\tops\tcorrect (dry run)\t[red]key[/red]\t\\x1b[2J\\tgone\tSTOPPED: no\t-\t-"
    ]
