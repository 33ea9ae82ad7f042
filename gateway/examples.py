"""Examples in the OpenAPI document: requests that were sent and the replies that came, recorded in `examples.json`.

`make docs` records them anew; a test runs each of them again and compares what comes with what stands there.
"""

from importlib.resources import files
from typing import Any, Final

import msgspec

JSON: Final = "application/json"


class Example(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One call in the order in which they were made: what was sent, and what came back."""

    title: str
    call: str
    """Method and path template, as in the contract."""
    path: str
    scope: str = ""
    """Scope of the key that was sent; empty for none."""
    body: dict[str, Any] | None = None
    status: int = 0
    headers: dict[str, str] = {}
    """Those of the reply that say something about the call."""
    media_type: str = JSON
    reply: Any = None


def read_examples() -> list[Example]:
    """All examples, in the order in which they have to be made."""
    return msgspec.json.decode(files("gateway").joinpath("examples.json").read_bytes(), type=list[Example])


def add_examples(paths: dict[str, dict[str, Any]]) -> None:
    """Put every example at its call: bodies where OpenAPI has a place for them, the rest under `x-examples`.

    Examples of calls that this process does not answer are left out.
    """
    for number, example in enumerate(read_examples(), 1):
        method, template = example.call.split(" ")
        operation = paths.get(template, {}).get(method.lower())
        if operation is None:
            continue
        name = f"example-{number}"
        if example.body is not None:
            _named(operation["requestBody"]["content"][JSON])[name] = _value(example.title, example.body)
        reply = operation["responses"][str(example.status)]["content"][example.media_type]
        _named(reply)[name] = _value(example.title, example.reply)
        operation.setdefault("x-examples", []).append(
            {
                "name": name,
                "title": example.title,
                "path": example.path,
                "scope": example.scope,
                "status": example.status,
                "headers": example.headers,
                "media_type": example.media_type,
            }
        )


def _named(content: dict[str, Any]) -> dict[str, Any]:
    return content.setdefault("examples", {})


def _value(title: str, value: Any) -> dict[str, Any]:
    return {"summary": title, "value": value}
