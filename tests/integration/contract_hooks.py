"""What the contract says and JSON Schema cannot: schemathesis loads this file into its own process.

Each hook takes a body that the document allows to one that the contract allows too, and leaves all others as they are: a
body that shall be refused stays what it was.
"""

import re
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import schemathesis

from kernel import limits

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Apply what stands below."""
    del context
    body = whole(body)
    if isinstance(body, dict):
        for part in [body, *operations_of(body)]:
            keep_sum(part.get("lines"))
            keep_reason(part)
    return body


def whole(value: Any) -> Any:
    """1.0 is an integer to JSON Schema; here only 1 is, because the next reader may round the other one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole(one) for one in value]
    if isinstance(value, dict):
        return {name: whole(one) for name, one in value.items()}
    return value


def operations_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    found = body.get("operations")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def keep_sum(lines: Any) -> None:
    """Lines with one key are summed, and the sum has the bound of a quantity: no schema can add."""
    if not isinstance(lines, list) or not all(isinstance(line, dict) and fits(line.get("qty")) for line in lines):
        return
    if sum(line["qty"] for line in lines) > limits.QTY_MAX:
        for line in lines:
            line["qty"] = 1


def fits(qty: Any) -> bool:
    return isinstance(qty, int) and not isinstance(qty, bool) and 1 <= qty <= limits.QTY_MAX


def keep_reason(body: dict[str, Any]) -> None:
    """What no pattern can say of a reason: it can be printed, and shares its room with an approval's number."""
    reason = body.get("reason")
    if not isinstance(reason, str) or not 0 < len(reason) <= limits.REASON_CHARS_MAX or CONTROL.search(reason):
        return
    body["reason"] = reason = "".join(one if one.isprintable() else "x" for one in reason).strip() or "x"
    if isinstance(body.get("approval_no"), str):
        body["reason"] = reason[: limits.REASON_CHARS_MAX // 2]


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """A header is text on the wire: a number that was taken out of an answer cannot be sent as it is."""
    del context, kwargs
    for name, value in list((case.headers or {}).items()):
        case.headers[name] = value if isinstance(value, str | bytes) else str(value)


@schemathesis.hook
def filter_failure(context: Any, failure: Any, case: Any, response: Any) -> bool:
    """Keep every failure but three, which are none.

    `query` is also the name of a key, which may be read: `Allow` says so, though this path is documented for POST alone.
    Which lines an order has no schema knows: naming another one is refused, as the contract says. And a name in the path
    that looks like an escape (`%0F`) is sent as it is, so that it means something else.
    """
    del context
    told = "Undocumented methods advertised: GET" in failure.message and "Missing" not in failure.message
    if told and case.operation.path == "/v1/inventory/query":
        return False
    if "Valid data should have been accepted" not in failure.message or response.status_code != 422:
        return True
    sent = unquote(urlsplit(response.request.url).path)
    if any(str(value) not in sent for value in (case.path_parameters or {}).values()):
        return False
    return not all("the order has no line" in error["message"] for error in response.json()["errors"])
