"""Load from a process of its own: `python -m tests.flow.load SPEC HISTORY`, until its time is over or SIGTERM.

SPEC is JSON: urls, key, stock {key: units}, orders_per_s, seconds, seed, run. HISTORY is written at the end: every order as
`OrderHistory`, plus counters. Orders arrive by the clock, whether the system is slow or not; at most `OPEN_ORDERS_MAX` are open.
"""

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from client.retries import Retries
from client.stockgate import StockgateClient
from stockgate.demo_history import OrderHistory
from stockgate.demo_player import Player
from stockgate.demo_stream import Fate, OrderPlan

OPEN_ORDERS_MAX = 400
PROGRESS_S = 0.1


def plans(spec: dict[str, Any]) -> Iterator[OrderPlan]:
    """An endless seeded stream of small orders over the given keys."""
    rng = random.Random(spec["seed"])
    keys = sorted(spec["stock"])
    fates = [Fate.PAID, Fate.CANCELLED, Fate.FAILED, Fate.ABANDONED, Fate.RETURNED]
    number = 0
    while True:
        number += 1
        chosen = rng.sample(keys, rng.choice((1, 1, 2, min(3, len(keys)))))
        fate = rng.choices(fates, (60, 12, 10, 8, 10))[0]
        yield OrderPlan(
            order_id=f"{spec['run']}-{number}",
            lines=tuple((key, rng.choice((1, 1, 2))) for key in chosen),
            fate=fate,
            buyer_id=f"b{number % 50}",
            duplicates=1 if rng.random() < 0.05 else 0,
            consumed=rng.random() < 0.3,
            ttl_s=2 if fate is Fate.ABANDONED else 600,
        )


async def run(spec: dict[str, Any], history: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    retries = Retries(deadline_s=40.0, attempt_s=8.0, pause_max_s=0.5)
    clients = [StockgateClient(url, spec["key"], retries=retries) for url in spec["urls"]]
    player = Player(clients, seed=spec["seed"])
    started = time.monotonic()
    progress = history.with_suffix(".progress")
    async with asyncio.TaskGroup() as tasks:
        open_orders: set[asyncio.Task[None]] = set()
        noted = 0.0
        for number, plan in enumerate(plans(spec)):
            now = time.monotonic()
            if stop.is_set() or now - started > spec["seconds"]:
                break
            if now - noted > PROGRESS_S:
                noted = now
                answered = sum(order.reserved or bool(order.refused) for order in player.orders.values())
                progress.write_text(f"{player.calls} {answered}")
            pause = started + number / spec["orders_per_s"] - now
            if pause > 0:
                await asyncio.sleep(pause)
            if len(open_orders) >= OPEN_ORDERS_MAX:
                await asyncio.wait(open_orders, return_when=asyncio.FIRST_COMPLETED)
            task = tasks.create_task(player.play(plan, tasks))
            open_orders.add(task)
            task.add_done_callback(open_orders.discard)
        # Measured while orders arrive: what is still waited for afterwards is no load.
        calls_per_s = player.calls / (time.monotonic() - started)
    for client in clients:
        await client.aclose()
    history.write_text(
        json.dumps(
            {
                "orders": msgspec.to_builtins(player.orders),
                "calls": player.calls,
                "calls_per_s": calls_per_s,
                "not_executed": player.not_executed,
                "surprises": player.surprises,
            }
        )
    )


def read_history(path: Path) -> tuple[dict[str, OrderHistory], dict[str, Any]]:
    """The orders and the counters of a finished load."""
    content = json.loads(path.read_text())
    orders = {name: msgspec.convert(order, OrderHistory) for name, order in content.pop("orders").items()}
    return orders, content


if __name__ == "__main__":
    asyncio.run(run(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])))
