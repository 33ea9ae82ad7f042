"""What Redis' cmsgpack and msgspec make of each other's bytes: the wire format rests on it."""

from typing import Any

import msgspec
import pytest

from kernel.limits import EXACT_INTEGER_MAX, QUANTITY_TOTAL_MAX


@pytest.mark.parametrize(
    "number",
    [0, 1, -1, 127, 128, -32, -33, -128, -129, 65_535, 65_536, 2**31, -(2**31), 2**32, 1_796_077_489_940,
     QUANTITY_TOTAL_MAX, -QUANTITY_TOTAL_MAX, EXACT_INTEGER_MAX, -EXACT_INTEGER_MAX],
)  # fmt: skip
def test_whole_numbers_go_both_ways_unchanged(client: Any, number: int) -> None:
    packed = client.eval("return cmsgpack.pack({cmsgpack.unpack(ARGV[1])})", 0, msgspec.msgpack.encode(number))
    assert packed == msgspec.msgpack.encode([number]) or msgspec.msgpack.decode(packed, type=list[int]) == [number]
    digits = client.eval("return string.format('%d', cmsgpack.unpack(ARGV[1]))", 0, msgspec.msgpack.encode(number))
    assert digits == b"%d" % number


def test_what_lua_computes_stays_an_integer(client: Any) -> None:
    packed = client.eval("return cmsgpack.pack({0 * -5, 6 / 2, -1 * 7, 2^52, math.floor(7 / 2)})", 0)
    assert msgspec.msgpack.decode(packed, type=list[int]) == [0, 3, -7, 2**52, 3]


def test_an_empty_table_is_an_empty_array(client: Any) -> None:
    assert msgspec.msgpack.decode(client.eval("return cmsgpack.pack({{}, 1})", 0)) == [[], 1]


def test_a_trailing_nil_shortens_an_array_and_never_appears_in_it(client: Any) -> None:
    assert msgspec.msgpack.decode(client.eval("return cmsgpack.pack({1, 2, 3, nil})", 0)) == [1, 2, 3]


@pytest.mark.parametrize("length", [0, 1, 31, 32, 255, 256, 65_535, 65_536])
def test_texts_of_any_length_are_str_on_both_sides(client: Any, length: int) -> None:
    text = "é"[: length % 2] + "x" * (length - length % 2)
    packed = client.eval("return cmsgpack.pack({cmsgpack.unpack(ARGV[1])})", 0, msgspec.msgpack.encode(text))
    assert msgspec.msgpack.decode(packed, type=list[str]) == [text]


def test_a_thousand_nested_arrays_arrive(client: Any) -> None:
    lines = [[f"sku-{i}", i, 1, "", 7, i] for i in range(1000)]
    packed = client.eval("return cmsgpack.pack(cmsgpack.unpack(ARGV[1]))", 0, msgspec.msgpack.encode(lines))
    assert msgspec.msgpack.decode(packed) == lines
