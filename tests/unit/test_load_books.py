"""The books of load users: a loss, a double, an oversell are seen, and what is only unknown is not taken for one."""

import pytest

from loadtests.books import NEVER, Books, ChangeBook, KeySeen, OrderBook, OrderSeen, Verdict, compare

STOCK = {"a": 10}


def order(*moves: str, order_id: str = "o1", qty: int = 2, expires: bool = False) -> OrderBook:
    book = OrderBook(order_id, {"a": qty}, expires=expires)
    for move in moves:
        book.done(move, replay=False)
    return book


def seen(status: str, qty: int = 2) -> dict[str, OrderSeen]:
    return {"o1": OrderSeen(status, {"a": qty})}


def key(reserved: int = 0, sold: int = 0, consumed: int = 0, locked: int = 0, total: int = 10) -> dict[str, KeySeen]:
    available = total - reserved - sold - consumed - locked
    return {"a": KeySeen(available, reserved, sold, consumed, locked, total)}


def wrong(verdict: Verdict) -> dict[str, int]:
    counts = ("lost", "doubled", "oversold", "drift", "unanswered")
    return {name: count for name in counts if (count := getattr(verdict, name))}


@pytest.mark.parametrize(
    ("moves", "status", "quantities"),
    [
        (("reserve",), "RESERVED", key(reserved=2)),
        (("reserve", "extend", "extend"), "RESERVED", key(reserved=2)),
        (("reserve", "release"), "RELEASED", key()),
        (("reserve", "confirm"), "CONFIRMED", key(sold=2)),
        (("reserve", "confirm", "consume"), "CONSUMED", key(consumed=2)),
        (("reserve", "confirm", "return"), "RETURNED", key()),
    ],
)
def test_books_that_balance(moves: tuple[str, ...], status: str, quantities: dict[str, KeySeen]) -> None:
    verdict = compare(Books([order(*moves)]), seen(status), quantities, STOCK)
    assert (wrong(verdict), verdict.findings) == ({}, [])


def test_an_acknowledged_order_that_is_unknown_is_lost() -> None:
    assert wrong(compare(Books([order("reserve")]), {}, key(), STOCK)) == {"lost": 1}


def test_an_acknowledged_order_in_another_state_is_lost() -> None:
    verdict = compare(Books([order("reserve", "confirm")]), seen("RESERVED"), key(reserved=2), STOCK)
    assert wrong(verdict) == {"lost": 1}
    assert verdict.findings == ["o1: was told CONFIRMED, and is RESERVED"]


def test_a_refused_order_leaves_no_trace() -> None:
    assert wrong(compare(Books([order()]), {}, key(), STOCK)) == {}
    assert wrong(compare(Books([order()]), seen("RESERVED"), key(reserved=2), STOCK)) == {"doubled": 1}


def test_two_first_answers_to_one_move_are_a_double() -> None:
    twice = order("reserve")
    twice.done("reserve", replay=False)
    assert wrong(compare(Books([twice]), seen("RESERVED"), key(reserved=2), STOCK)) == {"doubled": 1}
    again = order("reserve")
    again.done("reserve", replay=True)
    assert wrong(compare(Books([again]), seen("RESERVED"), key(reserved=2), STOCK)) == {}


def test_an_order_that_holds_more_than_it_asked_for_is_a_double() -> None:
    verdict = compare(Books([order("reserve")]), seen("RESERVED", qty=4), key(reserved=4), STOCK)
    assert wrong(verdict) == {"doubled": 1}


@pytest.mark.parametrize("status", [None, "RESERVED"])
def test_an_attempt_without_an_answer_may_have_been_carried_out_or_not(status: str | None) -> None:
    book = order()
    book.doubt("reserve")
    held = {} if status is None else seen(status)
    assert wrong(compare(Books([book]), held, key(reserved=2 if held else 0), STOCK)) == {}


def test_an_answer_ends_the_doubt() -> None:
    book = order()
    book.doubt("reserve")
    book.done("reserve", replay=True)
    assert book.states() == {"RESERVED"}


def test_a_caller_stopped_in_the_middle_of_a_move_accepts_both_ends() -> None:
    book = order("reserve")
    book.asking = "confirm"
    assert book.states() == {"RESERVED", "CONFIRMED"}


def test_what_nobody_answered_is_counted() -> None:
    book = order("reserve")
    book.doubt("confirm")
    book.unanswered = True
    change = ChangeBook("lock", "a", 1, "r1")
    verdict = compare(Books([book], [change]), seen("CONFIRMED"), key(sold=2), STOCK)
    assert wrong(verdict) == {"unanswered": 2}


def test_a_short_hold_may_end_by_itself_and_a_long_one_may_not() -> None:
    assert wrong(compare(Books([order("reserve", expires=True)]), seen("RELEASED"), key(), STOCK)) == {}
    assert wrong(compare(Books([order("reserve")]), seen("RELEASED"), key(), STOCK)) == {"lost": 1}
    assert NEVER not in order("reserve", expires=True).states()


def test_more_promised_than_there_is_is_oversold() -> None:
    books = Books([order("reserve", "confirm", order_id="o1", qty=6), order("reserve", order_id="o2", qty=6)])
    orders = {"o1": OrderSeen("CONFIRMED", {"a": 6}), "o2": OrderSeen("RESERVED", {"a": 6})}
    found = {"a": KeySeen(-2, 6, 6, 0, 0, 10)}
    assert wrong(compare(books, orders, found, STOCK)) == {"oversold": 2}


def test_operators_changes_count() -> None:
    changes = [
        ChangeBook("adjust", "a", 5, "r1", "done"),
        ChangeBook("adjust", "a", -3, "r2", "done"),
        ChangeBook("lock", "a", 4, "r3", "done"),
        ChangeBook("unlock", "a", 1, "r4", "done"),
        ChangeBook("adjust", "a", 100, "r5", "refused"),
    ]
    assert wrong(compare(Books(changes=changes), {}, key(locked=3, total=12), STOCK)) == {}


@pytest.mark.parametrize("found", [{}, key(reserved=1), key(total=11)])
def test_quantities_that_do_not_follow_from_the_orders_are_drift(found: dict[str, KeySeen]) -> None:
    assert wrong(compare(Books(), {}, found, STOCK)) == {"drift": 1}


def test_unsold_units_are_what_is_left() -> None:
    assert compare(Books([order("reserve", "confirm")]), seen("CONFIRMED"), key(sold=2), STOCK).unsold == 8
