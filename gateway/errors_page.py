"""`docs/errors.md`: every code a caller can hear, made from the catalogue of problems and the table of calls."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.call import Endpoint
from gateway.contract import contract
from gateway.openapi import NO_CALL, problem_codes
from kernel.problems import CATALOGUE, ProblemKind

HEAD: Final = """\
# Errors

Made from the source by `make docs`; a test fails when it is stale.

Every refusal and failure is `application/problem+json` after RFC 9457. Branch on `code`, never on text: `title` and
`detail` may change, a code and its status may not. `instance` is the request's id, which also stands in `X-Request-Id`.

- **4xx**: refused. Nothing has changed, in no store.
- **5xx** with `"outcome": "not_executed"`: nothing has changed.
- **5xx** with `"outcome": "unknown"`: it may have been done. Repeat with the same order id or `request_no`, and the answer
  says what happened.

**A repeat is always safe**: an id is done once, and a call that had been done before answers 2xx with
`Idempotent-Replay: true`. Whether it is of use is the column *repeat*: `as it is` means that the same call may succeed
later (after `Retry-After`, where there is one), `mended` that only another call can.

Among the results of `POST /v1/operations` and `POST /v1/inventory/query` the same codes stand as the `body` of an element,
with its `status`; the reply itself is 200.
"""
EVERY_CALL: Final = "every call"
EVERY_CALL_WITH_KEY: Final = "every call that needs a key"
EVERY_CALL_WITH_BODY: Final = "every call that takes a body"
NO_CALL_AT_ALL: Final = "what is no call"
NOT_YET: Final = "nothing in this version"


def errors_page(endpoints: Sequence[Endpoint] | None = None) -> str:
    """The page as Markdown; `endpoints` are those of this version if not given."""
    described = contract("") if endpoints is None else endpoints
    codes = sorted(CATALOGUE, key=lambda code: CATALOGUE[code].status)
    table = "\n".join(f"| [`{code}`](#{code.lower()}) | {_row(CATALOGUE[code])} |" for code in codes)
    sections = "\n".join(_section(code, CATALOGUE[code], senders(code, described)) for code in codes)
    return f"{HEAD}\n| code | status | what | repeat |\n| --- | --- | --- | --- |\n{table}\n\n{sections}"


def _row(kind: ProblemKind) -> str:
    return f"{kind.status} | {kind.title} | {kind.repeat}"


def _section(code: str, kind: ProblemKind, sent_by: Sequence[str]) -> str:
    said_by = "\n".join(f"- {one}" for one in sent_by)
    return (
        f"## {code}\n\n{kind.status}. **When:** {kind.when}\n\n**Do:** {kind.advice}\n\n**Repeat:** {kind.repeat}.\n\n"
        f"**From:**\n\n{said_by}\n"
    )


def senders(code: str, endpoints: Sequence[Endpoint]) -> list[str]:
    """Which calls can say a code, in as few words as are exact."""
    if code in NO_CALL:
        return [NO_CALL_AT_ALL]
    calls = [one for one in endpoints if code in problem_codes(one)]
    if not calls:
        return [NOT_YET]
    named = [f"`{one.method} {one.template}`" for one in calls]
    for words, group in (
        (EVERY_CALL, endpoints),
        (EVERY_CALL_WITH_KEY, [one for one in endpoints if one.scopes]),
        (EVERY_CALL_WITH_BODY, [one for one in endpoints if one.takes is not None]),
    ):
        if set(named) == {f"`{one.method} {one.template}`" for one in group}:
            return [words]
    return named


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(errors_page())
