"""Problems: the catalogue is complete and every body is what RFC 9457 and the contract say."""

import json

import pytest

from kernel.problems import CATALOGUE, Problem

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
