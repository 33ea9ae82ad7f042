"""The OpenAPI 3.1 document, made from the same types that decode the requests and make the replies."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, Literal, cast, get_type_hints

import msgspec

from gateway import requests
from gateway.call import Call, Endpoint, Handle
from gateway.examples import add_examples
from gateway.replies import JSON, Reply, encode
from kernel import limits
from kernel.problems import CATALOGUE

REF: Final = "#/components/schemas/{name}"
NO_CALL: Final = ("NOT_FOUND", "METHOD_NOT_ALLOWED")
"""What is said where a path and a method name no call."""
EVERYWHERE: Final = ("MALFORMED_HTTP", "REQUEST_TIMEOUT", "HEAD_TOO_LARGE", "INTERNAL_ERROR")
WITH_KEY: Final = ("UNAUTHORIZED", "FORBIDDEN", "TOO_MANY_REQUESTS", "UNAVAILABLE")
WITH_BODY: Final = ("MALFORMED_JSON", "BODY_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE", "INVALID_REQUEST")
_NAMES: Final[dict[str, Any]] = {
    "order_id": requests.Id,
    "key": requests.InventoryKey,
    "id": Annotated[int, msgspec.Meta(ge=0, le=limits.EXACT_INTEGER_MAX)],
}
"""What stands in the braces of a path."""
_OUR_END: Final = r"(?!\n)$"
_INVENTORY_KEY_PATTERN: Final = rf"^[!-~]([ -~]{{0,{limits.INVENTORY_KEY_CHARS_MAX - 2}}}[!-~])?$"
_ALSO: Final[dict[str, dict[str, Any]]] = {
    "Reconcile": {
        "anyOf": [
            {"required": ["dry_run"], "properties": {"dry_run": {"const": True}}},
            {"required": ["reason"], "properties": {"reason": {"type": "string"}}},
        ]
    }
}
"""What a handler asks for beyond its type."""

_ORDER: Final = {"order_id": "$response.body#/order_id"}
_KEY: Final = {"key": "$response.body#/inventory_key"}
_LINKS: Final[dict[str, tuple[tuple[str, dict[str, str], Any], ...]]] = {
    "reserve": tuple(
        (call, _ORDER, None) for call in ("read_order", "confirm", "release", "extend", "consume", "return")
    ),
    "confirm": tuple((call, _ORDER, None) for call in ("read_order", "consume", "return")),
    "create_inventory": (
        *((call, _KEY, None) for call in ("read_inventory", "adjust", "lock", "unlock")),
        ("reserve", {}, {"lines": [{"inventory_key": "$response.body#/inventory_key", "qty": 1}]}),
        ("query_inventory", {}, {"inventory_keys": ["$response.body#/inventory_key"]}),
    ),
    "lock": (("unlock", _KEY, None), ("read_inventory", _KEY, None)),
    "reconcile": (("read_reconcile", {"id": "$response.body#/id"}, None),),
}
"""Which call may follow a 2xx of which, with what in its path and in its body."""


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


def document(
    endpoints: Sequence[Endpoint], version: str, ttl_seconds_max: int = limits.TTL_SECONDS_MAX
) -> dict[str, Any]:
    """The whole document as plain values. `ttl_seconds_max` is the bound that this service is set to."""
    types = [ProblemReply, requests.OperationRequest]
    types += [endpoint.takes for endpoint in endpoints if endpoint.takes is not None]
    types += [given for endpoint in endpoints for given in endpoint.gives.values() if given is not None]
    # One schema for each type, in the order of first use.
    unique = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(unique, ref_template=REF)
    schema_of = dict(zip(unique, schemas, strict=True))
    # Elements are decoded one by one, so the type itself only says that they are JSON.
    otherwise = {
        "description": "Anything else is refused alone: its result is the refusal, the others are not touched."
    }
    components["Operations"]["properties"]["operations"]["items"] = {
        "anyOf": [schema_of[requests.OperationRequest], otherwise]
    }
    bodies = [REF.format(name=name) for name in ("OrderReply", "InventoryReply", "ProblemReply")]
    components["ResultReply"]["properties"]["body"] = {"anyOf": [{"$ref": ref} for ref in bodies]}
    for name, more in _ALSO.items():
        components[name] |= more
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.template, {})[endpoint.method.lower()] = _operation(endpoint, schema_of)
    for schema in _schemas([components, paths]):
        if isinstance(pattern := schema.get("pattern"), str):
            schema["pattern"] = _in_every_dialect(pattern)
        if schema.get("maximum") == limits.TTL_SECONDS_MAX:
            schema["maximum"] = ttl_seconds_max
    add_examples(paths)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stockgate",
            "version": version,
            "description": "An inventory gateway. Errors are problem+json with a stable `code`; after a 5xx with the "
            "outcome `unknown`, repeat with the same id. Beside what stands at each call: a path that is none of these "
            "is `NOT_FOUND`, another method `METHOD_NOT_ALLOWED`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _in_every_dialect(pattern: str) -> str:
    """A pattern in words that all dialects share: elsewhere `$` is the end and nothing but the end."""
    if pattern == requests.INVENTORY_KEY_PATTERN:
        return _INVENTORY_KEY_PATTERN
    return pattern.removesuffix(_OUR_END) + "$" if pattern.endswith(_OUR_END) else pattern


def _schemas(part: Any) -> Iterator[dict[str, Any]]:
    """Every object within a part of the document."""
    if isinstance(part, dict):
        fields = cast("dict[str, Any]", part)
        yield fields
        part = list(fields.values())
    if isinstance(part, list):
        for inner in cast("list[Any]", part):
            yield from _schemas(inner)


def operation_id(endpoint: Endpoint) -> str:
    """The name of a call."""
    return endpoint.handle.__name__.strip("_")


def _operation(endpoint: Endpoint, schema_of: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [tag_of(endpoint.template)],
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
        operation["requestBody"] = {"required": not _may_be_empty(endpoint.takes), "content": content}
    return operation


def _may_be_empty(takes: Any) -> bool:
    """Whether no body at all means something: where every field may be left out."""
    return takes.__name__ not in _ALSO and not any(field.required for field in msgspec.structs.fields(takes))


def tag_of(template: str) -> str:
    """The group of calls that a path belongs to."""
    parts = template.strip("/").split("/")
    if parts[:2] == ["ops", "mode"]:
        return "mode"
    return parts[1] if parts[0] == "v1" else parts[0]


def _path_parameters(template: str) -> Iterable[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", template):
        yield {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(_NAMES[name])}


def _query_parameters(endpoint: Endpoint) -> Iterable[dict[str, Any]]:
    if endpoint.query is None:
        return
    kinds = get_type_hints(endpoint.query, include_extras=True)
    for field in msgspec.structs.fields(endpoint.query):
        schema = msgspec.json.schema(kinds[field.name])
        yield {"name": field.name, "in": "query", "required": field.required, "schema": schema}


def _header_parameters(endpoint: Endpoint) -> Iterable[dict[str, Any]]:
    if endpoint.scopes:
        yield _header("X-Request-Id", "1 to 64 printable ASCII characters; anything else is replaced.")
    if endpoint.changes_stock:
        yield _header(
            "traceparent", "W3C Trace Context; its trace id goes through the events. Anything else is ignored."
        )


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def _answer(endpoint: Endpoint, given: Any, schema_of: dict[Any, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "Done.", "headers": {"X-Request-Id": {"schema": {"type": "string"}}}}
    if given is None:
        answer["content"] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        answer["content"] = {"application/json": {"schema": schema_of[given]}}
    if links := _LINKS.get(operation_id(endpoint)):
        answer["links"] = {target: _link(target, parameters, body) for target, parameters, body in links}
    if endpoint.changes_stock:
        durability = {"type": "string", "enum": ["broker", "redis", "mysql"]}
        answer["headers"]["Durability"] = {"schema": durability, "required": True}
        answer["headers"]["Idempotent-Replay"] = {"schema": {"type": "string", "enum": ["true"]}}
    return answer


def _link(target: str, parameters: dict[str, str], body: Any) -> dict[str, Any]:
    link: dict[str, Any] = {"operationId": target, "parameters": parameters}
    return link if body is None else link | {"requestBody": body}


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
    return {str(status): _problem(status, codes, schema) for status, codes in sorted(by_status.items())}


def _problem(status: int, codes: list[str], schema: dict[str, Any]) -> dict[str, Any]:
    narrowed: dict[str, Any] = {"type": "object", "properties": {"code": {"enum": codes}}}
    if status >= 500:
        narrowed["required"] = ["outcome"]
    headers: dict[str, Any] = {"X-Request-Id": {"schema": {"type": "string"}, "required": True}}
    if status in {429, 503}:
        headers["Retry-After"] = {"description": "Seconds.", "schema": {"type": "integer"}, "required": True}
    if status == 401:
        headers["WWW-Authenticate"] = {"schema": {"type": "string"}, "required": True}
    return {
        "description": "; ".join(f"`{code}`: {CATALOGUE[code].title}" for code in codes),
        "headers": headers,
        "content": {"application/problem+json": {"schema": {"allOf": [schema, narrowed]}}},
    }


def serve_document(endpoints: Sequence[Endpoint], version: str, ttl_seconds_max: int) -> Handle:
    """The handler of GET /openapi.json."""
    body = encode(document(endpoints, version, ttl_seconds_max))

    async def openapi(_call: Call) -> Reply:
        return Reply(200, body, (JSON,))

    return openapi
