"""Locust scenarios: shoppers who reserve and settle, and some who only look. Run by `make load`, or by hand with locust.

Environment: ORDERS_KEY bearer key with the scope `orders`, KEY_PREFIX and KEYS of the inventory keys to ask for.
"""

import os
import random
import uuid
from typing import Any, ClassVar

from locust import FastHttpUser, between, events, task

PREFIX = os.environ.get("KEY_PREFIX", "load-")
KEYS = int(os.environ.get("KEYS", "100"))
EXPECTED_REFUSALS = frozenset({"INSUFFICIENT_STOCK"})


class Shopper(FastHttpUser):
    """Reserves one to three lines, then pays, cancels or walks away."""

    wait_time = between(0.01, 0.1)
    headers: ClassVar[dict[str, str]] = {
        "Authorization": f"Bearer {os.environ.get('ORDERS_KEY', '')}",
        "Content-Type": "application/json",
    }

    @task(20)
    def buy(self) -> None:
        """One order from the hold to its end."""
        order_id = uuid.uuid4().hex
        # The lower half of the numbers is asked for most of the time: some shelves run empty.
        numbers = {min(random.randrange(KEYS), random.randrange(KEYS)) for _ in range(random.choice((1, 1, 2, 3)))}
        lines = [{"inventory_key": f"{PREFIX}{number}", "qty": 1} for number in numbers]
        body = {"order_id": order_id, "lines": lines, "ttl_seconds": 60}
        if not self._call("reserve", "/v1/reservations", body):
            return
        fate = random.random()
        if fate < 0.7:
            self._call("confirm", f"/v1/reservations/{order_id}/confirm", {})
        elif fate < 0.9:
            self._call("release", f"/v1/reservations/{order_id}/release", {"reason": "cancelled"})

    @task(5)
    def look(self) -> None:
        """Read a key."""
        path = f"/v1/inventory/{PREFIX}{random.randrange(KEYS)}"
        self.client.get(path, headers=self.headers, name="inventory")

    def _call(self, name: str, path: str, body: dict[str, Any]) -> bool:
        """Whether it was done; an expected refusal is no failure."""
        done = False
        with self.client.post(path, json=body, headers=self.headers, name=name, catch_response=True) as answer:
            done = answer.status_code in {200, 201}
            code = None if done or not answer.text else answer.json().get("code")
            if done or code in EXPECTED_REFUSALS:
                answer.success()
            else:
                answer.failure(f"{answer.status_code} {code}")
        return done


@events.test_start.add_listener
def check_key(**_: object) -> None:
    """Say at once what is missing, instead of a thousand 401."""
    if not os.environ.get("ORDERS_KEY"):
        raise SystemExit("ORDERS_KEY is not set: run `make load`, or set it to a key with the scope `orders`")
