"""Operators at work while orders run: stock comes and goes, is taken out of sale and put back; others look at everything."""

import random
from typing import Final
from urllib.parse import quote

import gevent
from locust import between, constant, task

from loadtests.scenarios.order_service import Customer
from loadtests.users import PLAN, Caller, StockCaller

QTY_MAX: Final = 20
WRONG_CLASSES: Final = frozenset({"held", "rejected", "lost", "drifted"})
TASK_READS_MAX: Final = 60
TASK_POLL_S: Final = 0.5


class Buyer(Customer):
    """The orders between which the operators work."""


class Storekeeper(StockCaller):
    """Changes the stock of the keys that are being sold."""

    fixed_count = 4
    wait_time = between(0.1, 0.3)

    @task(4)
    def adjust(self) -> None:
        """A delivery, or pieces that broke."""
        self.change("adjust", random.choice(PLAN.inventory_keys), random.choice((QTY_MAX, QTY_MAX, -1, -QTY_MAX)))

    @task(2)
    def adjust_what_was_read(self) -> None:
        """Only if no other operator was there in between."""
        key = random.choice(PLAN.inventory_keys)
        told = self.ask("read_inventory", "GET", f"/v1/inventory/{quote(key, safe='')}")
        if told.done:
            self.change("adjust", key, 1, base_version=told.body["inventory_version"])

    @task(3)
    def lock_and_unlock(self) -> None:
        """Out of sale for a moment."""
        key, qty = random.choice(PLAN.inventory_keys), random.randint(1, QTY_MAX)
        if self.change("lock", key, qty):
            self.wait()
            self.change("unlock", key, qty)

    @task(1)
    def look(self) -> None:
        """The whole shelf."""
        told = self.ask("query_inventory", "POST", "/v1/inventory/query", {"inventory_keys": PLAN.inventory_keys})
        if told.done and any(result["status"] != 200 for result in told.body["results"]):
            self.complain("query_inventory", "a key that exists was not found")


class Watcher(Caller):
    """Asks how it stands, and whether the stores agree."""

    scope = "ops"
    fixed_count = 1
    wait_time = constant(0.5)

    @task(3)
    def status(self) -> None:
        """Alarms are failures; a backlog is none."""
        told = self.ask("status", "GET", "/ops/status")
        for shard in told.body.get("shards", ()):
            if shard["alarm"]:
                self.complain("status", f"alarm {shard['alarm']}")

    @task(2)
    def explain(self) -> None:
        """Why a key's number is what it is: while orders run that may be under way, but never wrong."""
        key = random.choice(PLAN.inventory_keys)
        told = self.ask("explain", "GET", f"/ops/inventory/{quote(key, safe='')}/explain")
        if told.done and told.body["class"] in WRONG_CLASSES:
            self.complain("explain", f"{told.body['class']}: {told.body['sentence']}")

    @task(2)
    def compare(self) -> None:
        """A dry run over some keys, followed to its end: nothing may have drifted."""
        keys = random.sample(PLAN.inventory_keys, min(10, len(PLAN.inventory_keys)))
        told = self.ask("reconcile", "POST", "/ops/reconcile", {"keys": keys, "dry_run": True})
        if not told.done:
            return
        for _ in range(TASK_READS_MAX):
            read = self.ask("read_reconcile", "GET", f"/ops/reconcile/{told.body['id']}")
            if not read.done:
                return
            if read.body["finished_ms"]:
                if read.body["drifted"] or read.body["lost"]:
                    self.complain("read_reconcile", f"drifted {read.body['drifted']}, lost {read.body['lost']}")
                return
            gevent.sleep(TASK_POLL_S)
        self.complain("read_reconcile", f"not finished after {TASK_READS_MAX} looks")


class Auditor(Caller):
    """Checks the invariants over everything, one time after the other."""

    scope = "ops"
    fixed_count = 1
    wait_time = constant(2.0)
    network_timeout = 60.0

    @task
    def audit(self) -> None:
        """What is in flight is no violation, so the audit must hold under load too."""
        told = self.ask("audit", "GET", "/ops/audit")
        if told.done and not told.body["ok"]:
            wrong = [check["name"] for check in told.body["checks"] if not check["ok"]]
            self.complain("audit", f"violated: {', '.join(wrong)}")


USERS = (Buyer, Storekeeper, Watcher, Auditor)
