from stockgate.demo_history import OrderHistory, judge


def balance(available: int, reserved: int = 0, sold: int = 0, consumed: int = 0) -> dict[str, int]:
    return {"available": available, "reserved": reserved, "sold": sold, "consumed": consumed, "locked": 0}


def test_a_consistent_history_has_no_findings() -> None:
    orders = {
        "a": OrderHistory({"k": 2}, reserved=True, confirmed=True, held_from=1.0),
        "b": OrderHistory({"k": 1}, refused="INSUFFICIENT_STOCK"),
        "c": OrderHistory({"k": 1}, reserved=True, released=True, held_from=0.0, held_until=0.5),
    }
    verdict = judge(
        orders, {"a": {"k": "CONFIRMED"}, "b": None, "c": {"k": "RELEASED"}}, {"k": 2}, {"k": balance(0, sold=2)}
    )
    assert (verdict.lost, verdict.oversold, verdict.wrong) == ([], [], [])


def test_an_acknowledged_order_that_is_gone_is_lost() -> None:
    orders = {"a": OrderHistory({"k": 1}, reserved=True, held_from=1.0)}
    assert judge(orders, {"a": None}, {"k": 1}, {"k": balance(1)}).lost


def test_a_confirmed_order_that_is_only_reserved_is_lost() -> None:
    orders = {"a": OrderHistory({"k": 1}, reserved=True, confirmed=True, held_from=1.0)}
    assert judge(orders, {"a": {"k": "RESERVED"}}, {"k": 1}, {"k": balance(0, reserved=1)}).lost


def test_two_buyers_of_one_unit_are_an_oversell_even_if_the_server_says_otherwise() -> None:
    orders = {name: OrderHistory({"k": 1}, reserved=True, confirmed=True, held_from=1.0) for name in "ab"}
    verdict = judge(orders, {name: {"k": "CONFIRMED"} for name in "ab"}, {"k": 1}, {"k": balance(0, sold=1)})
    assert verdict.oversold


def test_two_holds_at_one_moment_are_an_oversell_although_both_ended() -> None:
    orders = {
        "a": OrderHistory({"k": 1}, reserved=True, released=True, held_from=1.0, held_until=3.0),
        "b": OrderHistory({"k": 1}, reserved=True, released=True, held_from=2.0, held_until=4.0),
    }
    verdict = judge(orders, {name: {"k": "RELEASED"} for name in "ab"}, {"k": 1}, {"k": balance(1)})
    assert verdict.oversold == ["k: 2 units held at one moment of 1"]


def test_holds_one_after_the_other_are_none() -> None:
    orders = {
        "a": OrderHistory({"k": 1}, reserved=True, released=True, held_from=1.0, held_until=2.0),
        "b": OrderHistory({"k": 1}, reserved=True, released=True, held_from=2.0, held_until=3.0),
    }
    assert not judge(orders, {name: {"k": "RELEASED"} for name in "ab"}, {"k": 1}, {"k": balance(1)}).oversold


def test_an_unknown_outcome_proves_nothing_but_its_stock_must_add_up() -> None:
    orders = {"a": OrderHistory({"k": 1}, unknown=["reserve"])}
    assert judge(orders, {"a": {"k": "RESERVED"}}, {"k": 1}, {"k": balance(0, reserved=1)}).wrong == []
    assert judge(orders, {"a": {"k": "RESERVED"}}, {"k": 1}, {"k": balance(1)}).wrong


def test_a_refused_order_that_exists_is_wrong() -> None:
    orders = {"a": OrderHistory({"k": 1}, refused="INSUFFICIENT_STOCK")}
    assert judge(orders, {"a": {"k": "RESERVED"}}, {"k": 1}, {"k": balance(0, reserved=1)}).wrong
