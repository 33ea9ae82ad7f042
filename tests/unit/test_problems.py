"""Problems: the catalogue is complete and every body is what RFC 9457 and the contract say."""

import json
import re
from pathlib import Path

import pytest

from gateway.contract import contract
from gateway.errors_page import NOT_YET, errors_page, senders
from gateway.openapi import NO_CALL, problem_codes
from kernel.problems import CATALOGUE, Problem

ROOT = Path(__file__).resolve().parents[2]
ENDPOINTS = contract("0")

CONTRACT = {
    "MALFORMED_JSON": 400,
    "UNKNOWN_INVENTORY_KEY": 404,
    "UNKNOWN_ORDER": 404,
    "INSUFFICIENT_STOCK": 409,
    "ORDER_CONFLICT": 409,
    "ORDER_CLOSED": 409,
    "ILLEGAL_TRANSITION": 409,
    "HOLD_EXPIRED": 409,
    "BUYER_LIMIT": 409,
    "SALE_CLOSED": 409,
    "VERSION_CONFLICT": 409,
    "REQUEST_CONFLICT": 409,
    "SWITCH_RUNNING": 409,
    "SWITCH_TOO_LATE": 409,
    "NO_SWITCH": 404,
    "INVALID_REQUEST": 422,
    "TOO_MANY_REQUESTS": 429,
    "UNAVAILABLE": 503,
    "SHARD_CLOSED": 503,
    "KEY_FROZEN": 503,
}


def test_codes_of_the_contract_have_their_status() -> None:
    assert {code: CATALOGUE[code].status for code in CONTRACT} == CONTRACT


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_code_can_be_said(code: str) -> None:
    kind = CATALOGUE[code]
    extra = {"outcome": "unknown"} if kind.status >= 500 else {}
    problem = Problem(code, **extra)
    body = json.loads(problem.body("request-1"))
    assert body == {
        "type": f"urn:stockgate:problem:{code}",
        "title": kind.title,
        "status": kind.status,
        "code": code,
        "detail": kind.advice,
        "instance": "request-1",
        **extra,
    }
    assert code == code.upper()
    assert kind.title
    assert kind.advice.endswith(".")


def test_fields_of_its_own_stand_beside_the_standard_ones() -> None:
    lines = [{"inventory_key": "a", "requested": 2, "available": 1}]
    body = json.loads(Problem("INSUFFICIENT_STOCK", "one line is short", lines=lines).body())
    assert body["lines"] == lines
    assert body["detail"] == "one line is short"
    assert "instance" not in body


@pytest.mark.parametrize("name", ["status", "type", "instance", "title"])
def test_fields_of_the_standard_are_not_overwritten(name: str) -> None:
    with pytest.raises(ValueError, match="standard"):
        Problem("ORDER_CLOSED", **{name: "RESERVED"})


@pytest.mark.parametrize("extra", [{}, {"outcome": "perhaps"}])
def test_a_5xx_says_whether_it_was_executed(extra: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="executed"):
        Problem("UNAVAILABLE", **extra)


def test_an_unknown_code_is_a_bug() -> None:
    with pytest.raises(KeyError):
        Problem("SOMETHING_ELSE")


# --- the page -------------------------------------------------------------------------------------------------------------


def test_the_page_about_errors_is_what_the_source_says() -> None:
    assert (ROOT / "docs/errors.md").read_text() == errors_page(), "`make docs` makes it anew"


@pytest.mark.parametrize("code", CATALOGUE)
def test_every_code_has_its_sentences_and_stands_on_the_page(code: str) -> None:
    kind = CATALOGUE[code]
    for sentence in (kind.when, kind.advice):
        assert re.fullmatch(r"[A-Z`].{10,}\.", sentence), sentence
    assert f"\n## {code}\n" in errors_page()
    assert kind.repeat == "as it is" or kind.status < 500 or code == "NOT_IMPLEMENTED"


def test_every_code_has_a_sender_or_is_kept_for_what_is_not_built() -> None:
    unsent = {code for code in CATALOGUE if senders(code, ENDPOINTS) == [NOT_YET]}
    assert unsent == {"BUYER_LIMIT", "SALE_CLOSED", "NOT_IMPLEMENTED"}


def test_every_code_of_every_call_is_in_the_catalogue() -> None:
    said = {code for endpoint in ENDPOINTS for code in problem_codes(endpoint)}
    assert said | set(NO_CALL) <= CATALOGUE.keys()
