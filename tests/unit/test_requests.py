"""What the gateway lets in, and how it says no."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import requests
from gateway.requests import InvalidBody, MalformedBody, check_id, check_inventory_key, decode
from kernel import limits

RESERVE = msgspec.json.Decoder(requests.Reserve)
LINE = {"inventory_key": "k", "qty": 1}


def reserve(**changed: Any) -> bytes:
    return json.dumps({"order_id": "o-1", "lines": [LINE], **changed}).encode()


def invalid(body: bytes, decoder: Any = RESERVE) -> tuple[str, str]:
    with pytest.raises(InvalidBody) as caught:
        decode(decoder, body)
    error = caught.value.errors[0]
    return error.path, error.message


def test_a_plain_reserve_is_read() -> None:
    asked = decode(RESERVE, reserve(ttl_seconds=60, buyer_id="b"))
    assert (asked.order_id, asked.ttl_seconds, asked.buyer_id) == ("o-1", 60, "b")
    assert [(line.inventory_key, line.qty) for line in asked.lines] == [("k", 1)]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"order_id": "o", "lines": [{"inventory_key": "k", "qty": NaN}]}',
        b'{"order_id": "o", "lines": [{"inventory_key": "k", "qty": Infinity}]}',
        b'{"order_id": "o", "lines": [{"inventory_key": "k", "qty": 1}]} {}',
        b'{"order_id": "\xff\xfe", "lines": [{"inventory_key": "k", "qty": 1}]}',
        b'\xef\xbb\xbf{"order_id": "o", "lines": [{"inventory_key": "k", "qty": 1}]}',
        b"[" * 100_000,
    ],
)
def test_what_is_not_json_is_malformed(body: bytes) -> None:
    with pytest.raises((MalformedBody, InvalidBody)) as caught:
        decode(RESERVE, body)
    # Deep nesting is refused for its first bracket, before anybody knows whether it would end.
    assert isinstance(caught.value, MalformedBody) or body.startswith(b"[")


@pytest.mark.parametrize(
    "body",
    [
        b'{"order_id": "o", "order_id": "p", "lines": [{"inventory_key": "k", "qty": 1}]}',
        b'{"order_id": "o", "lines": [{"inventory_key": "k", "qty": 1, "qty": 2}]}',
        b'{"order_id": "o", "lines": [{"inventory_key": "k", "qty": 1}], "lines": [{"inventory_key": "k", "qty": 1}]}',
        b'{"order_id": "o", "lines": [{"inventory_key": "k", "qty": 1}], "buyer_id": null, "buyer_id": "b"}',
        # The same name in other letters.
        b'{"order_id": "o", "order\\u005fid": "p", "lines": [{"inventory_key": "k", "qty": 1}]}',
        # A quote in the dropped value could mislead a count of quotes.
        b'{"order_id": "a\\"b", "order_id": "p", "lines": [{"inventory_key": "k", "qty": 1}]}',
    ],
)
def test_a_name_that_stands_twice_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        decode(RESERVE, body)


def test_fields_given_as_null_are_absent_and_harmless() -> None:
    assert decode(RESERVE, reserve(ttl_seconds=None, buyer_id=None)).ttl_seconds is None


@pytest.mark.parametrize("qty", [0, -1, 1.0, 1.5, True, "1", None, limits.QTY_MAX + 1, 2**53 + 1, 2**64, 10**400])
def test_a_quantity_is_a_whole_number_within_its_bounds(qty: Any) -> None:
    path, _ = invalid(reserve(lines=[{"inventory_key": "k", "qty": qty}]))
    assert path == "$.lines[0].qty"


def test_the_largest_quantity_is_taken() -> None:
    assert decode(RESERVE, reserve(lines=[{"inventory_key": "k", "qty": limits.QTY_MAX}])).lines[0].qty == 1_000_000


@pytest.mark.parametrize("order_id", ["", "a b", " a", "a\n", "a\x00", "ä", "a" * 65, "\x7f", 7, None])
def test_an_id_is_1_to_64_printable_ascii_characters_without_spaces(order_id: Any) -> None:
    assert invalid(reserve(order_id=order_id))[0] == "$.order_id"


@pytest.mark.parametrize("order_id", ["a", "a" * 64, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "../..", "o/1"])
def test_every_printable_character_may_stand_in_an_id(order_id: str) -> None:
    assert decode(RESERVE, reserve(order_id=order_id)).order_id == order_id
    assert check_id("order_id", order_id) == order_id


@pytest.mark.parametrize("key", ["", " ", " a", "a ", "a\n", "a\tb", "é", "a" * 129])
def test_an_inventory_key_has_no_space_at_its_ends_and_nothing_unprintable(key: str) -> None:
    assert invalid(reserve(lines=[{"inventory_key": key, "qty": 1}]))[0] == "$.lines[0].inventory_key"
    with pytest.raises(InvalidBody):
        check_inventory_key(key)


@pytest.mark.parametrize("key", ["a", "a b", "a  b {x}/y%", "{", "a" * 128, "~ ~"])
def test_an_inventory_key_may_hold_inner_spaces(key: str) -> None:
    assert decode(RESERVE, reserve(lines=[{"inventory_key": key, "qty": 1}])).lines[0].inventory_key == key
    assert check_inventory_key(key) == key


@pytest.mark.parametrize("count", [0, limits.LINES_PER_ORDER_MAX + 1])
def test_an_order_has_1_to_1000_lines(count: int) -> None:
    assert invalid(reserve(lines=[LINE] * count))[0] == "$.lines"


def test_a_thousand_lines_are_taken() -> None:
    assert len(decode(RESERVE, reserve(lines=[LINE] * 1000)).lines) == 1000


@pytest.mark.parametrize("ttl", [0, -5, limits.TTL_SECONDS_MAX + 1, 1.5, "60", True])
def test_a_ttl_is_bounded(ttl: Any) -> None:
    assert invalid(reserve(ttl_seconds=ttl))[0].startswith("$.ttl_seconds")


def test_a_field_nobody_knows_is_named() -> None:
    assert "`surprise`" in invalid(reserve(surprise=1))[1]


@pytest.mark.parametrize(
    ("decoder", "body"),
    [
        (msgspec.json.Decoder(requests.Confirm), {"reacquire": True}),
        (
            msgspec.json.Decoder(requests.CreateInventory),
            {
                "inventory_key": "k",
                "item_id": "i",
                "inventory_mode": "QTY",
                "request_no": "r",
                "per_buyer_limit": 1,
            },
        ),
    ],
)
def test_what_comes_later_is_refused_by_name(decoder: Any, body: dict[str, Any]) -> None:
    assert "is not supported by this version" in invalid(json.dumps(body).encode(), decoder)[1]


@pytest.mark.parametrize("mode", ["SYS_GEN", "EXT_POOL", "qty", ""])
def test_only_mode_qty_is_built(mode: str) -> None:
    body = {"inventory_key": "k", "item_id": "i", "inventory_mode": mode, "request_no": "r"}
    path, _ = invalid(json.dumps(body).encode(), msgspec.json.Decoder(requests.CreateInventory))
    assert path == "$.inventory_mode"


def test_quantities_per_line_of_a_confirm_are_refused() -> None:
    body = b'{"lines": [{"inventory_key": "k", "qty": 1}]}'
    assert invalid(body, msgspec.json.Decoder(requests.Confirm))[0] == "$.lines[0]"


@pytest.mark.parametrize("delta", [0.5, "1", True, 2**52 + 1, -(2**52) - 1, 2**53 + 1])
def test_a_delta_is_a_whole_number_within_the_exact_range(delta: Any) -> None:
    body = json.dumps({"delta": delta, "request_no": "r", "reason": "x"}).encode()
    assert invalid(body, msgspec.json.Decoder(requests.Adjust))[0] == "$.delta"


@pytest.mark.parametrize("reason", ["", "a\nb", "x" * 201, "\x00"])
def test_a_reason_is_text_of_one_line(reason: str) -> None:
    body = json.dumps({"delta": 1, "request_no": "r", "reason": reason}).encode()
    assert invalid(body, msgspec.json.Decoder(requests.Adjust))[0] == "$.reason"


def test_a_reason_may_be_in_any_language() -> None:
    body = json.dumps({"delta": 1, "request_no": "r", "reason": "盘点差异, größer"}).encode()
    assert decode(msgspec.json.Decoder(requests.Adjust), body).reason == "盘点差异, größer"


@pytest.mark.parametrize("reason", ["expired", "bored", None])
def test_a_release_names_one_of_three_reasons(reason: Any) -> None:
    assert invalid(json.dumps({"reason": reason}).encode(), msgspec.json.Decoder(requests.Release))[0] == "$.reason"


def test_an_operation_is_chosen_by_its_op() -> None:
    decoder = msgspec.json.Decoder(requests.OperationRequest)
    assert isinstance(decode(decoder, b'{"op": "confirm", "order_id": "o"}'), requests.ConfirmOp)
    assert invalid(b'{"op": "verify", "order_id": "o"}', decoder)[0] == "$.op"
    assert invalid(b'{"order_id": "o"}', decoder)[0] == "$"


NAMES = st.text(st.sampled_from('abc"\\\u00e9'), max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | NAMES, lambda v: st.lists(v, max_size=3), max_leaves=4
)


@given(extra=st.lists(st.tuples(NAMES, VALUES), max_size=3))
def test_an_accepted_body_has_no_name_twice(extra: list[tuple[str, Any]]) -> None:
    fields = [("order_id", "o"), ("lines", [LINE]), *extra]
    text = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in fields)
    names = [name for name, _ in fields]
    try:
        decode(RESERVE, b"{" + text.encode() + b"}")
    except (MalformedBody, InvalidBody):
        return
    assert len(set(names)) == len(names)


@given(st.lists(st.sampled_from(["order_id", "lines", "ttl_seconds", "buyer_id"]), max_size=6))
def test_a_body_of_known_fields_is_accepted_exactly_when_each_stands_once(more: list[str]) -> None:
    values = {"order_id": '"o"', "lines": '[{"qty":1,"inventory_key":"k"}]', "ttl_seconds": "5", "buyer_id": "null"}
    names = ["order_id", "lines", *more]
    text = ",".join(f'"{name}":{values[name]}' for name in names)
    body = b"{" + text.encode() + b"}"
    if len(set(names)) == len(names):
        decode(RESERVE, body)
    else:
        with pytest.raises(MalformedBody):
            decode(RESERVE, body)


_ELEMENTS = st.lists(
    st.sampled_from(
        [
            b'{"op":"confirm","order_id":"o"}',
            b'{"op":"reserve","order_id":"o","lines":[{"inventory_key":"k","qty":1}]}',
            b'{ "op" : "extend", "order_id" : "o", "ttl_seconds" : 5 }',
            b'{"op":"release","order_id":"o","reason":"risk","lines":null}',
            b'{"op":"confirm","order_id":"\\u006f"}',
            # Each of these is wrong in a way of its own.
            b'{"op":"confirm","order_id":"o","order_id":"p"}',
            b'{"op":"confirm","order_id":"o","lines":["k"],"lines":["k"]}',
            b'{"op":"confirm","op":"release","order_id":"o","reason":"risk"}',
            b'{"op":"reserve","order_id":"o","lines":[{"inventory_key":"k","qty":1,"qty":2}]}',
            b'{"op":"confirm"}',
            b'{"op":"nothing","order_id":"o"}',
            b'"o"',
        ]
    ),
    min_size=1,
    max_size=5,
)


@given(_ELEMENTS)
def test_elements_together_are_what_each_is_alone(elements: list[bytes]) -> None:
    body = b'{"operations":[' + b",".join(elements) + b"]}"
    decoder = msgspec.json.Decoder(requests.OperationRequest)
    try:
        raws = requests.decode(msgspec.json.Decoder(requests.Operations), body).operations
    except MalformedBody:
        # With an escape anywhere the whole body is read for names that stand twice.
        assert b"\\" in body
        return
    together = requests.decode_each(decoder, body, raws)
    alone: list[Any] = []
    for raw in raws:
        try:
            alone.append(requests.decode(decoder, raw))
        except (InvalidBody, MalformedBody):
            assert together is None
            return
    assert together is None or together == alone
    plain = b"\\" not in body and b"null" not in body
    assert (together is not None) or not plain
