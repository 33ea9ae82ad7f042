"""The OpenAPI 3.1 document, made from the same types that decode the requests and make the replies."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_type_hints

import msgspec

from gateway import requests
from gateway.call import Call, Endpoint, Handle
from gateway.replies import JSON, Reply, encode
from kernel.problems import CATALOGUE

REF: Final = "#/components/schemas/{name}"
EVERYWHERE: Final = ("NOT_FOUND", "METHOD_NOT_ALLOWED", "INTERNAL_ERROR")
WITH_KEY: Final = ("UNAUTHORIZED", "FORBIDDEN", "TOO_MANY_REQUESTS", "UNAVAILABLE")
WITH_BODY: Final = ("MALFORMED_JSON", "REQUEST_TIMEOUT", "BODY_TOO_LARGE", "INVALID_REQUEST")
_NAMES: Final[dict[str, Any]] = {
    "order_id": requests.Id,
    "key": requests.InventoryKey,
    "id": int,
}
"""What stands in the braces of a path."""


class ErrorReply(msgspec.Struct, omit_defaults=True):
    """One thing that is wrong with a request: where, as a JSON path, and what."""

    path: str
    message: str


class ProblemLine(msgspec.Struct, omit_defaults=True):
    """One line of an order that stands in the way."""

    inventory_key: str
    requested: int | None = None
    available: int | None = None
    held: int | None = None
    status: str | None = None
    reason: str | None = None


class ProblemReply(msgspec.Struct, omit_defaults=True):
    """A problem after RFC 9457. Branch on `code`, never on text; most fields belong to some codes only."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    instance: str | None = None
    outcome: Literal["not_executed", "unknown"] | None = None
    """With every 5xx. After `unknown` repeat with the same id: nothing is undone meanwhile."""
    errors: list[ErrorReply] | None = None
    lines: list[ProblemLine] | None = None
    inventory_keys: list[str] | None = None
    differs: list[Literal["lines", "buyer_id"]] | None = None
    order_status: str | None = None
    wanted: str | None = None
    inventory_version: int | None = None
    allowed: list[str] | None = None


def document(endpoints: Sequence[Endpoint], version: str) -> dict[str, Any]:
    """The whole document as plain values."""
    types = [ProblemReply, requests.OperationRequest]
    types += [endpoint.takes for endpoint in endpoints if endpoint.takes is not None]
    types += [given for endpoint in endpoints for given in endpoint.gives.values() if given is not None]
    # One schema for each type, in the order of first use.
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(unique, ref_template=REF)
    schema_of = dict(zip(unique, schemas, strict=True))
    # Elements are decoded one by one, so the type itself only says that they are JSON.
    components["Operations"]["properties"]["operations"]["items"] = schema_of[requests.OperationRequest]
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.template, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stockgate",
            "version": version,
            "description": "An inventory gateway. Errors are problem+json with a stable `code`; after a 5xx with the "
            "outcome `unknown`, repeat with the same id.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.handle.__name__.strip("_"),
        "summary": endpoint.summary,
        "tags": [_tag(endpoint.template)],
        "parameters": [
            *_path_parameters(endpoint.template),
            *_query_parameters(endpoint),
            *_header_parameters(endpoint),
        ],
        "responses": {str(status): _answer(endpoint, given, schema_of) for status, given in endpoint.gives.items()},
    }
    operation["responses"] |= _problems(endpoint, schema_of[ProblemReply])
    if endpoint.scopes:
        operation["security"] = [{"key": []}]
        operation["description"] = f"Scope: {' or '.join(sorted(endpoint.scopes))}."
    if endpoint.takes is not None:
        content = {"application/json": {"schema": schema_of[endpoint.takes]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _tag(template: str) -> str:
    parts = template.strip("/").split("/")
    return parts[1] if parts[0] == "v1" else parts[0]


def _path_parameters(template: str) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", template):
        yield {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(_NAMES[name])}


def _query_parameters(endpoint: Endpoint) -> Iterable[dict[str, Any]]:
    if endpoint.query is None:
        return
    for name, kind in get_type_hints(endpoint.query, include_extras=True).items():
        yield {"name": name, "in": "query", "required": False, "schema": msgspec.json.schema(kind)}


def _header_parameters(endpoint: Endpoint) -> Iterable[dict[str, Any]]:
    if endpoint.scopes:
        yield {"name": "X-Request-Id", "in": "header", "schema": {"type": "string", "maxLength": 64}}
    if endpoint.changes_stock:
        yield {"name": "traceparent", "in": "header", "schema": {"type": "string"}}


def _answer(endpoint: Endpoint, given: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done.", "headers": {"X-Request-Id": {"schema": {"type": "string"}}}}
    if given is not None:
        answer["content"] = {"application/json": {"schema": schema_of[given]}}
    if endpoint.changes_stock:
        durability = {"type": "string", "enum": ["broker", "redis", "mysql"]}
        answer["headers"]["Durability"] = {"schema": durability, "required": True}
        answer["headers"]["Idempotent-Replay"] = {"schema": {"type": "string", "enum": ["true"]}}
    return answer


def problem_codes(endpoint: Endpoint) -> list[str]:
    """Every code with which an endpoint may refuse or fail."""
    codes: list[str] = [*EVERYWHERE]
    if endpoint.scopes:
        codes += WITH_KEY
    if endpoint.takes is not None:
        codes += WITH_BODY
    elif "{" in endpoint.template or endpoint.query is not None:
        codes.append("INVALID_REQUEST")
    return list(dict.fromkeys([*codes, *endpoint.problems]))


def _problems(endpoint: Endpoint, schema: dict[str, Any]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in problem_codes(endpoint):
        by_status.setdefault(CATALOGUE[code].status, []).append(code)
    return {
        str(status): {
            "description": "; ".join(f"`{code}`: {CATALOGUE[code].title}" for code in codes),
            "content": {"application/problem+json": {"schema": schema}},
        }
        for status, codes in sorted(by_status.items())
    }


def serve_document(endpoints: Sequence[Endpoint], version: str) -> Handle:
    """The handler of GET /openapi.json."""
    body = encode(document(endpoints, version))

    async def openapi(_call: Call) -> Reply:
        return Reply(200, body, (JSON,))

    return openapi
