"""Holds every answer of every gateway that runs within the tests' own process against what its call declares."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.call import Call, Endpoint
from gateway.dispatch import REFUSALS, Dispatch
from gateway.openapi import problem_codes
from gateway.replies import Reply


@contextmanager
def watched_answers() -> Generator[list[str]]:
    """While it lasts: what was answered against the contract, one line each."""
    found: list[str] = []
    answer = Dispatch._answer

    async def watched(self: Dispatch, scope: Any, receive: Any, send: Any) -> None:
        sent: list[Any] = []

        async def noting(message: Any) -> None:
            sent.append(message)
            await send(message)

        try:
            await answer(self, scope, receive, noting)
        finally:
            if len(sent) == 2 and (endpoint := _endpoint(self, scope)) is not None:
                found.extend(undeclared(endpoint, sent[0]["status"], sent[1]["body"]))

    end = Dispatch.end

    def watched_end(self: Dispatch, call: Call, *more: Any) -> Reply:
        reply = end(self, call, *more)
        found.extend(undeclared(call.endpoint, reply.status, reply.body))
        return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Dispatch, "_answer", watched)
        patch.setattr(Dispatch, "end", watched_end)
        yield found


def _endpoint(dispatch: Dispatch, scope: Any) -> Endpoint | None:
    """The call that was meant; None where a path and a method name none."""
    try:
        # Where operators have an address of their own, their calls are no calls on the other one.
        routes = dispatch._routes if dispatch._operators_port is None else dispatch._routes_of(scope)
        found = routes.find(scope["method"], scope["raw_path"])
    except REFUSALS:
        return None
    return found[0] if found else None


def undeclared(endpoint: Endpoint, status: int, body: bytes) -> list[str]:
    """What of an answer its call does not declare."""
    call = f"{endpoint.method} {endpoint.template}"
    if status in endpoint.gives:
        return []
    if status < 400:
        return [f"{call} answered {status} and declares {sorted(endpoint.gives)}"]
    code = json.loads(body)["code"]
    return [] if code in problem_codes(endpoint) else [f"{call} answered {status} {code}, which it does not declare"]
