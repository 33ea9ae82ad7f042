"""What Locust loads: the users of one scenario, and the result that is left behind at the end.

`make load` runs this in a process of its own, because Locust rewrites the standard library's sockets for all of it.
"""

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import gevent
import msgspec
from locust import events
from locust.env import Environment
from locust.stats import StatsEntry

from loadtests.budgets import Measured, Result
from loadtests.users import BOOKS, CHECK, PLAN

# Locust takes the user classes that it finds among this module's names.
_scenario: Any = importlib.import_module(f"loadtests.scenarios.{PLAN.scenario}")
globals().update({user.__name__: user for user in _scenario.USERS})


@events.init.add_listener
def end_after_requests(environment: Environment, **_: object) -> None:
    """End by count where the plan says so: what a run does is then the same on a slow machine."""
    requests_max = PLAN.requests_max
    if requests_max is None:
        return
    ending: list[object] = []

    def count(**_: object) -> None:
        runner = environment.runner
        if runner is not None and not ending and environment.stats.total.num_requests >= requests_max:
            # In a greenlet of its own: whoever asked is one of the users that are waited for.
            ending.append(gevent.spawn(runner.stop if environment.web_ui else runner.quit))

    environment.events.request.add_listener(count)


@events.quitting.add_listener
def leave_result(environment: Environment, **_: object) -> None:
    """Write figures and books where the plan says."""
    stats = environment.stats
    seconds = max((stats.last_request_timestamp or 0.0) - stats.start_time, 0.001)
    # A complaint of ours is an entry of the same name with another method.
    complaints = Counter(
        {name: entry.num_failures for (name, method), entry in stats.entries.items() if method == CHECK}
    )
    asked = {name: entry for (name, method), entry in stats.entries.items() if method != CHECK}
    crashes = list(environment.runner.exceptions.values()) if environment.runner else []
    result = Result(
        by_name={name: _measured(entry, seconds, complaints[name]) for name, entry in asked.items()},
        errors={
            **{f"{error.name}: {error.error}": error.occurrences for error in stats.errors.values()},
            **{str(crash["traceback"]): int(crash["count"]) for crash in crashes},
        },
        crashes=sum(crash["count"] for crash in crashes),
        per_s=sum(entry.num_requests for entry in asked.values()) / seconds,
        books=BOOKS,
    )
    Path(PLAN.results).write_bytes(msgspec.json.encode(result))


def _measured(entry: StatsEntry, seconds: float, complaints: int) -> Measured:
    p50_ms, p95_ms, p99_ms = (float(entry.get_response_time_percentile(part)) for part in (0.5, 0.95, 0.99))
    failures = entry.num_failures + complaints
    return Measured(entry.num_requests, failures, entry.num_requests / seconds, p50_ms, p95_ms, p99_ms)
