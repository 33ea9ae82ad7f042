"""The invariants after a run, from both stores and from the callers' history. Read directly, not through our own doors."""

from collections import Counter, defaultdict
from typing import Any

from inventory.moves import Move
from stockgate.demo_history import OrderHistory, judge
from tests.flow.world import World

QUANTITIES: tuple[str, ...] = ("available", "reserved", "sold", "consumed", "locked")


async def check_stores(world: World) -> None:
    """Invariants 1, 4 and 5: conservation, dense ledger, legal paths, equal stores, nothing held or parked."""
    balances = await world.query(
        f"SELECT inventory_key, {', '.join(QUANTITIES)}, total, seq, held FROM inventory_balance"
    )
    ledger = await world.query(
        "SELECT inventory_key, seq, kind, tenant, ref, line_state, qty, d_available, d_reserved, d_sold, d_consumed, "
        "d_locked, available, reserved, sold, consumed, locked FROM inventory_ledger ORDER BY inventory_key, seq"
    )
    rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for key, *rest in ledger:
        rows[key].append(tuple(rest))
    assert not await world.query("SELECT * FROM inventory_parked_event"), "parked events are left"
    for key, *values in balances:
        quantities, total, seq, held = values[:5], values[5], values[6], values[7]
        assert not held, f"{key} is held"
        assert min(quantities) >= 0, f"{key}: {quantities}"
        assert sum(quantities) == total, f"{key}: {quantities} do not make {total}"
        assert [row[0] for row in rows[key]] == list(range(1, seq + 1)), f"{key}: the ledger is not dense up to {seq}"
        folded = [0] * 5
        adjusted = 0
        for row in rows[key]:
            folded = [value + delta for value, delta in zip(folded, row[6:11], strict=True)]
            assert folded == list(row[11:16]), (
                f"{key} seq {row[0]}: the deltas give {folded}, its after-image {row[11:16]}"
            )
            adjusted += row[6] if row[1] == Move.ADJUST else 0
        assert folded == quantities, f"{key}: the ledger gives {folded}, the balance is {quantities}"
        assert adjusted == total, f"{key}: adjustments give {adjusted}, total is {total}"
    check_paths(ledger)
    await check_lines(world)
    await check_redis(world, {key: (*values[:5], values[6]) for key, *values in balances})


def check_paths(ledger: list[tuple[Any, ...]]) -> None:
    """Invariant 4: each line takes each step at most once and gives its stock back at most once."""
    steps: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for key, _seq, kind, tenant, ref, *_ in ledger:
        if kind in {Move.RESERVE, Move.CONFIRM, Move.RELEASE, Move.CONSUME, Move.RETURN}:
            steps[tenant, ref, key].append(kind)
    legal = {
        (Move.RESERVE,),
        (Move.RESERVE, Move.CONFIRM),
        (Move.RESERVE, Move.RELEASE),
        (Move.RESERVE, Move.CONFIRM, Move.CONSUME),
        (Move.RESERVE, Move.CONFIRM, Move.RETURN),
    }
    for line, path in steps.items():
        assert tuple(path) in legal, f"{line}: {[Move(step).name for step in path]} is no path of the table"


async def check_lines(world: World) -> None:
    """Lines against balances: what is RESERVED and CONFIRMED adds up to reserved and sold; headers count open lines."""
    wrong = await world.query(
        "SELECT b.inventory_key, b.reserved, b.sold, b.consumed, "
        "COALESCE(SUM(IF(r.state = 1, r.qty, 0)), 0) AS r1, COALESCE(SUM(IF(r.state = 2, r.qty, 0)), 0) AS r2, "
        "COALESCE(SUM(IF(r.state = 4, r.qty, 0)), 0) AS r4 "
        "FROM inventory_balance b LEFT JOIN inventory_reservation r ON r.inventory_key = b.inventory_key "
        "GROUP BY b.inventory_key, b.reserved, b.sold, b.consumed "
        "HAVING b.reserved <> r1 OR b.sold <> r2 OR b.consumed <> r4"
    )
    assert not wrong, f"lines and balances disagree: {wrong}"
    wrong = await world.query(
        "SELECT o.tenant, o.order_id, o.open_lines, o.line_count, COUNT(*) AS n, SUM(r.state = 1) AS open "
        "FROM inventory_order o JOIN inventory_reservation r USING (tenant, order_id) "
        "GROUP BY o.tenant, o.order_id, o.open_lines, o.line_count HAVING n <> o.line_count OR open <> o.open_lines"
    )
    assert not wrong, f"order headers and lines disagree: {wrong}"


async def check_redis(world: World, balances: dict[str, tuple[int, ...]]) -> None:
    """Invariant 5: every key opened in this epoch is the same in both stores."""
    row = await world.shard()
    prefix = f"{{sg:0}}:{row['epoch']}:"
    async with world.redis() as client:
        for member in await client.smembers(prefix + "opened"):
            key = member.decode()
            stored = await client.hmget(prefix + "k:" + key, *QUANTITIES, "seq")
            assert all(value is not None for value in stored), f"{key} is lost in Redis"
            assert tuple(int(value) for value in stored) == balances[key], (
                f"{key}: Redis {stored}, MySQL {balances[key]}"
            )


async def check_history(world: World, orders: dict[str, OrderHistory], stock: dict[str, int]) -> Counter[str]:
    """Invariants 2 and 3 from the callers' side: nothing lost, nothing sold twice, refused calls without a trace."""
    ledger = await world.query("SELECT ref, inventory_key, kind FROM inventory_ledger WHERE tenant = 'demo'")
    rows = Counter((ref, key, kind) for ref, key, kind in ledger)
    states = {1: "RESERVED", 2: "CONFIRMED", 3: "RELEASED", 4: "CONSUMED", 5: "RETURNED"}
    final: dict[str, dict[str, str]] = defaultdict(dict)
    for order_id, key, state in await world.query("SELECT order_id, inventory_key, state FROM inventory_reservation"):
        final[order_id][key] = states[state]
    balances = {
        key: dict(zip(QUANTITIES, values, strict=True))
        for key, *values in await world.query(f"SELECT inventory_key, {', '.join(QUANTITIES)} FROM inventory_balance")
        if key in stock
    }
    for order_id, order in orders.items():
        for key in order.lines:
            for told, kind in (
                (order.reserved, Move.RESERVE),
                (order.confirmed, Move.CONFIRM),
                (order.released, Move.RELEASE),
                (order.consumed, Move.CONSUME),
            ):
                count = rows[order_id, key, kind]
                assert count <= 1, f"{order_id} {key}: {count} rows of {kind.name}"
                assert not told or count == 1, f"{order_id} {key}: told {kind.name}, no row"
            assert not (order.refused and not order.unknown and rows[order_id, key, Move.RESERVE]), (
                f"{order_id}: refused, has a row"
            )
    verdict = judge(orders, {order_id: final.get(order_id) for order_id in orders}, stock, balances)
    assert not verdict.lost, verdict.lost[:5]
    assert not verdict.oversold, verdict.oversold[:5]
    assert not verdict.wrong, verdict.wrong[:5]
    return Counter(
        reserved=sum(order.reserved for order in orders.values()),
        refused=sum(bool(order.refused) for order in orders.values()),
        confirmed=sum(order.confirmed for order in orders.values()),
        unknown=sum(bool(order.unknown) for order in orders.values()),
    )


async def check_all(world: World, orders: dict[str, OrderHistory], stock: dict[str, int]) -> Counter[str]:
    """Wait until the holds that were left to expire have expired and all is quiet, then check every invariant."""

    async def expired() -> bool:
        return not await world.query(
            "SELECT 1 FROM inventory_order WHERE open_lines > 0 AND due_ms - created_ms < 60000 LIMIT 1"
        )

    # MySQL has to know of a hold before it can show that it has expired.
    await world.quiet()
    await world.until(expired, 30.0, "short holds expired")
    await world.quiet()
    await check_stores(world)
    return await check_history(world, orders, stock)
