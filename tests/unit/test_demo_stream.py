from pathlib import Path

import pytest

from stockgate.demo_stream import Fate, OrdersFileError, read_orders_file, zipf_stream

HEADER = "order_id,sku,quantity,unit_price_cent,ordered_at,buyer_id\n"


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "orders.csv"
    path.write_text(HEADER + "".join(line + "\n" for line in lines))
    return path


def test_a_stream_is_the_same_for_the_same_seed_and_asks_for_more_than_there_is() -> None:
    one, two = (zipf_stream("r", orders=2_000, keys=100, seed=7) for _ in range(2))
    assert one.orders == two.orders
    assert len(one.stock) == 101
    assert {order.fate for order in one.orders} == set(Fate)
    assert all(1 <= len(order.lines) <= 5 for order in one.orders)
    assert all(len({key for key, _ in order.lines}) == len(order.lines) for order in one.orders)
    demand = dict.fromkeys(one.stock, 0)
    for order in one.orders:
        for key, qty in order.lines:
            demand[key] += qty
    short = [key for key, qty in demand.items() if qty > one.stock[key]]
    assert one.flash_key in short or demand[one.flash_key] < one.stock[one.flash_key]
    assert short, "a stream that never meets an empty shelf proves nothing"
    popularity = sorted((qty for key, qty in demand.items() if key != one.flash_key), reverse=True)
    assert sum(popularity[:10]) > 3 * sum(popularity[-50:])


def test_repeated_skus_are_summed_and_charges_left_out(tmp_path: Path) -> None:
    stream = read_orders_file(
        write(
            tmp_path,
            "1,85123A,6,255,2010-12-01T08:26:00,b1",
            "1,POST,1,1800,2010-12-01T08:26:00,b1",
            "1,85123A,4,255,2010-12-01T08:26:00,b1",
            "1,sku with space,2,1,2010-12-01T08:26:00,b1",
        ),
        "r",
    )
    assert [order.lines for order in stream.orders] == [(("demo-r-85123A", 10), ("demo-r-sku with space", 2))]
    assert stream.skipped == {"charge": 1}
    assert stream.stock["demo-r-85123A"] == 9


def test_a_cancellation_returns_the_line_of_its_order(tmp_path: Path) -> None:
    stream = read_orders_file(
        write(
            tmp_path,
            "1,A,6,1,t,b1",
            "2,A,6,1,t,b2",
            "2,B,1,1,t,b2",
            "C3,A,-6,1,t,b2",
            "C4,A,-6,1,t,b9",
            "C5,A,-6,1,t,",
        ),
        "r",
    )
    fates = {order.order_id: (order.fate, order.returned) for order in stream.orders}
    assert fates == {"r-1": (Fate.PAID, ()), "r-2": (Fate.RETURNED, ("demo-r-A",))}
    assert stream.skipped == {"cancellation without its order": 2}


def test_missing_stock_is_written_off_and_buyers_may_be_missing(tmp_path: Path) -> None:
    stream = read_orders_file(write(tmp_path, "1,A,20,1,t,", "2,A,-5,0,t,"), "r")
    assert [(each.key, each.qty) for each in stream.write_offs] == [("demo-r-A", 5)]
    assert stream.stock["demo-r-A"] == 18 + 5
    assert stream.orders[0].buyer_id == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("order_id,sku\n1,A\n", "lacks buyer_id, quantity"),
        (HEADER + "1,A,six,1,t,b\n", "line 2: quantity 'six' is not an integer"),
        (HEADER + "1,A\n", "line 2: too few columns"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "orders.csv"
    path.write_text(content)
    with pytest.raises(OrdersFileError, match=message):
        read_orders_file(path, "r")
