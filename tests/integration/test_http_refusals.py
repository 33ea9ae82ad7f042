"""A table of everything that can be wrong with a call: its status, its code, and no trace of it in any store.

Requests are written to the socket byte by byte, because no client library would send most of them.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import pytest_asyncio
from aiormq import connect as amqp_connect

from gateway.call import Endpoint
from gateway.contract import contract
from kernel import limits
from kernel.amqp_topology import log_queue
from kernel.mysql_door import Database, Statement
from kernel.problems import CATALOGUE
from kernel.redis_door import RedisDoor
from stockgate.servers import Servers
from tests.filtered import until_filtered
from tests.integration.http_world import HttpWorld, held_open

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY: Final = "sku {7}/a b"
FEW: Final = "few"
LINE: Final = {"inventory_key": KEY, "qty": 1}
ENDPOINTS: Final = contract("0")


@dataclass(frozen=True)
class Case:
    """One request and what it comes to. `raw` is the whole request instead of the parts before."""

    name: str
    status: int
    code: str
    method: str = "POST"
    path: str = "/v1/reservations"
    body: bytes = b""
    caller: str | None = "all"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    raw: bytes | None = None

    def __str__(self) -> str:
        return self.name

    def request(self, keys: Mapping[str, str]) -> bytes:
        """The bytes to send; the connection is to be closed after them."""
        if self.raw is not None:
            return self.raw
        given = {"Host": "x", "Connection": "close", **self.headers}
        if self.caller is not None:
            given.setdefault("Authorization", f"Bearer {keys[self.caller]}")
        if self.body and "Transfer-Encoding" not in given:
            given.setdefault("Content-Length", str(len(self.body)))
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        return f"{self.method} {self.path} HTTP/1.1\r\n{lines}\r\n".encode() + self.body


@dataclass(frozen=True)
class Trace:
    """All that the stores hold, each name with a digest of its value."""

    redis: Mapping[str, str]
    mysql: Mapping[str, str]
    queued: int
    term: int
    """Whose reign it is: it changes where a busy machine kept a leader from saying that it lives."""


class Stores:
    """The three stores behind a gateway, to be looked at as a whole."""

    def __init__(self, world: HttpWorld, database: Database, redis: RedisDoor) -> None:
        self._world = world
        self._database = database
        self._redis = redis

    async def trace(self) -> Trace:
        names: list[bytes] = sorted(await self._redis.command("KEYS", "*"))
        values = [await self._value(name) for name in names]
        tables = [str(row[0]) for row in await self.rows("SHOW TABLES")]
        rows = {table: sorted(map(repr, await self.rows(f"SELECT * FROM {table}"))) for table in tables}
        return Trace(
            {name.decode(): hashlib.sha256(value).hexdigest() for name, value in zip(names, values, strict=True)},
            {table: hashlib.sha256("\n".join(found).encode()).hexdigest() for table, found in rows.items()},
            await self._queued(),
            int((await self.rows("SELECT term FROM shard"))[0][0]),
        )

    async def _value(self, name: bytes) -> bytes:
        """A name's content; of sets and hashes without their order, which a look alone may change."""
        match await self._redis.command("TYPE", name):
            case b"set":
                return repr(sorted(await self._redis.command("SMEMBERS", name))).encode()
            case b"hash":
                flat = await self._redis.command("HGETALL", name)
                return repr(sorted(zip(flat[::2], flat[1::2], strict=True))).encode()
            case _:
                dumped: bytes = await self._redis.command("DUMP", name)
                return dumped

    async def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return list(await self._database.fetch_all(Statement(statement)))

    async def _queued(self) -> int:
        connection = await amqp_connect(self._world.settings.amqp_url.get_secret_value())
        try:
            channel = await connection.channel()
            declared = await channel.queue_declare(log_queue(0), passive=True)
            return declared.message_count or 0
        finally:
            await connection.close()


@dataclass(frozen=True)
class Shop:
    """A system with something in it: two keys, a held, a confirmed and a released order, a foreign one, a request."""

    world: HttpWorld
    stores: Stores


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Shop]:
    async with held_open(servers, tmp_path_factory.mktemp("http")) as world:
        await world.stocked(1_000, KEY)
        await world.stocked(2, FEW)

        async def post(path: str, body: Any, caller: str = "all") -> None:
            reply = await world.call("POST", path, body, caller=caller)
            assert reply.status_code in {200, 201}, reply.text

        for order_id in ("held", "confirmed", "released"):
            await post("/v1/reservations", {"order_id": order_id, "lines": [LINE], "ttl_seconds": 3600})
        await post("/v1/reservations/confirmed/confirm", {})
        await post("/v1/reservations/released/release", {"reason": "cancelled"})
        await post("/v1/reservations", {"order_id": "foreign", "lines": [LINE]}, caller="other_tenant")
        await post(f"/v1/inventory/{FEW}/lock", {"qty": 1, "request_no": "lock-1", "reason": "x"})
        await world.settled()
        # The leader's own traces are no caller's.
        await until_filtered(world.settings.redis_url.get_secret_value())
        database = await Database.open(world.settings, name="trace")
        redis = RedisDoor.open(world.settings, name="trace")
        yield Shop(world, Stores(world, database, redis))
        await redis.close()
        await database.close()


async def answer_to(shop: Shop, case: Case) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Status, headers and problem that a request is answered with."""
    reader, writer = await asyncio.open_connection("127.0.0.1", shop.world.port)
    try:
        writer.write(case.request(shop.world.keys))
        async with asyncio.timeout(20):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


async def check(shop: Shop, case: Case) -> None:
    async with unchanged(shop):
        status, headers, problem = await answer_to(shop, case)
    assert (status, problem["code"]) == (case.status, case.code), problem
    assert CATALOGUE[case.code].status == problem["status"] == status
    assert headers["content-type"] == "application/problem+json"
    assert headers["x-request-id"] == problem["instance"]
    assert "durability" not in headers
    if status in {429, 503}:
        assert int(headers["retry-after"]) >= 1


@asynccontextmanager
async def unchanged(shop: Shop) -> AsyncGenerator[None]:
    """What happens within leaves no trace. A new leader does: it is no caller's, so then nothing is said."""
    before = await shop.stores.trace()
    yield
    after = await shop.stores.trace()
    changed = {
        name for name in before.redis.keys() | after.redis.keys() if before.redis.get(name) != after.redis.get(name)
    }
    assert after == before or after.term != before.term, changed


def reserve(**changed: Any) -> bytes:
    return json.dumps({"order_id": "new", "lines": [LINE], **changed}).encode()


def line(**changed: Any) -> bytes:
    return reserve(lines=[{**LINE, **changed}])


@pytest.mark.parametrize(
    "key", ["a b  c", "{x}", "{sg:1}:2:k:few", "a/b//c", "../..", "a%2Fb%", "'; DROP TABLE shard; --", "~" * 128]
)
async def test_a_key_of_any_printable_characters_is_that_key_in_every_store(shop: Shop, key: str) -> None:
    world = shop.world
    await world.stocked(5, key)
    order_id = await world.reserved(key, 2)
    assert (await world.call("POST", f"/v1/reservations/{order_id}/confirm", {})).status_code == 200
    assert await world.quantities(key) == (3, 0, 2, 0, 0)
    await world.settled()
    names = (await shop.stores.trace()).redis
    # In the slot of its shard, whatever braces it holds, and beside no other key's record.
    assert f"{{sg:0}}:1:k:{key}" in names
    assert all(name.startswith("{sg:0}:") for name in names)
    rows = await shop.stores.rows("SELECT inventory_key, available, sold FROM inventory_balance")
    assert [row[1:] for row in rows if row[0] == key] == [(3, 2)]


# --- bodies ---------------------------------------------------------------------------------------------------------------

NOT_JSON: Final[Mapping[str, bytes]] = {
    "a brace": b"{",
    "words": b"order please",
    "a comma too many": b'{"order_id":"new",}',
    "two values": reserve() + b"{}",
    "NaN": reserve().replace(b'"qty": 1', b'"qty": NaN'),
    "Infinity": reserve().replace(b'"qty": 1', b'"qty": Infinity'),
    "minus Infinity": reserve().replace(b'"qty": 1', b'"qty": -Infinity'),
    "a leading zero": reserve().replace(b'"qty": 1', b'"qty": 01'),
    "no UTF-8": reserve().replace(b"new", b"\xff\xfe"),
    "a byte order mark": b"\xef\xbb\xbf" + reserve(),
    "UTF-16": reserve().decode().encode("utf-16"),
    "a raw control character": reserve().replace(b"new", b"a\x01b"),
    "half a surrogate": reserve(order_id="\ud800"),
    "a name twice": b'{"order_id":"new","order_id":"other","lines":[]}'.replace(b"[]", json.dumps([LINE]).encode()),
    "a name twice in a line": reserve().replace(b'"qty": 1', b'"qty": 1, "qty": 2'),
    "a name twice, once escaped": b'{"order\\u005fid":"a",' + reserve()[1:],
}
NOT_VALID: Final[Mapping[str, bytes]] = {
    "an array": b"[]",
    "null": b"null",
    "a number": b"7",
    "a string": b'"order"',
    "deep nesting": b"[" * 100_000,
    "nothing in it": b"{}",
    "no lines": b'{"order_id":"new"}',
    "an unknown field": reserve(surprise=1),
    "an unknown field in a line": line(colour="red"),
    "deep nesting in an unknown field": b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"," + reserve()[1:],
    "lines are no list": reserve(lines=LINE),
    "a line is no object": reserve(lines=[KEY]),
    "no line": reserve(lines=[]),
    "1,001 lines": reserve(lines=[LINE] * (limits.LINES_PER_ORDER_MAX + 1)),
    "lines that sum up to too much": reserve(lines=[{**LINE, "qty": limits.QTY_MAX}, LINE]),
    **{
        f"qty {qty!r}": line(qty=qty)
        for qty in (
            0,
            -1,
            True,
            False,
            None,
            "1",
            1.0,
            1.5,
            1e3,
            [1],
            limits.QTY_MAX + 1,
            2**53,
            2**53 + 1,
            2**63,
            2**64,
        )
    },
    "qty of 400 digits": line(qty=10**400),
    "qty 1e400": reserve().replace(b'"qty": 1', b'"qty": 1e400'),
    **{
        f"order id {order_id!r:.30}": reserve(order_id=order_id)
        for order_id in (
            "",
            " ",
            "a b",
            " a",
            "a\n",
            "a\tb",
            "\x00",
            "\x7f",
            "ä",
            "订单",
            "a" * 65,
            7,
            None,
            True,
            [],
        )
    },
    **{
        f"inventory key {key!r:.30}": line(inventory_key=key)
        for key in ("", " ", " a", "a ", "a\n", "a\tb", "\x00", "\x7f", "é", "库存", "a" * 129, 7, None)
    },
    **{f"buyer id {buyer!r:.30}": reserve(buyer_id=buyer) for buyer in ("", "a b", "ü", "a" * 65, 7)},
    **{
        f"ttl {ttl!r}": reserve(ttl_seconds=ttl)
        for ttl in (0, -1, 1.5, 60.0, "60", True, limits.TTL_SECONDS_MAX + 1, 86_401, 2**70)
    },
}
BODIES: Final = [
    *(Case(name, 400, "MALFORMED_JSON", body=body) for name, body in NOT_JSON.items()),
    *(Case(name, 422, "INVALID_REQUEST", body=body) for name, body in NOT_VALID.items()),
    Case("no body", 400, "MALFORMED_JSON"),
    Case("another content type", 415, "UNSUPPORTED_MEDIA_TYPE", body=b"<order/>", headers={"Content-Type": "text/xml"}),
    Case("gzip", 415, "UNSUPPORTED_MEDIA_TYPE", body=b"\x1f\x8b\x08rest", headers={"Content-Encoding": "gzip"}),
    Case(
        "a body over the limit, announced",
        413,
        "BODY_TOO_LARGE",
        body=b"{",
        headers={"Content-Length": str(limits.BODY_BYTES_MAX + 1)},
    ),
    Case(
        "a body over the limit, in chunks",
        413,
        "BODY_TOO_LARGE",
        body=b"10000\r\n" + b" " * 0x10000 + b"\r\n" + b"30001\r\n" + b" " * 0x30001 + b"\r\n0\r\n\r\n",
        headers={"Transfer-Encoding": "chunked"},
    ),
]


@pytest.mark.parametrize("case", BODIES, ids=str)
async def test_a_body_that_is_wrong(shop: Shop, case: Case) -> None:
    await check(shop, case)


def path_of(endpoint: Endpoint) -> str:
    return re.sub(r"{(\w+)}", lambda name: {"order_id": "held", "id": "1"}.get(name[1], FEW), endpoint.template)


TAKING: Final = [endpoint for endpoint in ENDPOINTS if endpoint.takes is not None]


@pytest.mark.parametrize("endpoint", TAKING, ids=lambda endpoint: f"{endpoint.method} {endpoint.template}")
async def test_every_call_that_takes_a_body_refuses_what_is_no_object_of_its_own(
    shop: Shop, endpoint: Endpoint
) -> None:
    for body, status in (
        (b"{", 400),
        (b'{"a":1,"a":2}', 422),
        (b"\xff", 400),
        (b"[" * 100_000, 422),
        (b"[]", 422),
        (b"null", 422),
        (b'{"surprise":1}', 422),
        (b'{"reason":NaN}', None),
    ):
        case = Case("", 0, "", method=endpoint.method, path=path_of(endpoint), body=body)
        async with unchanged(shop):
            found, _, problem = await answer_to(shop, case)
        # What comes first in the body is refused first: a name that nobody knows, or a value that is none.
        assert found == (status or found), (body[:20], problem)
        assert problem["code"] in {"MALFORMED_JSON", "INVALID_REQUEST"}, (body[:20], problem)


OPERATORS_BODIES: Final = {
    "/v1/inventory": {"inventory_key": "new", "item_id": "i", "inventory_mode": "QTY", "request_no": "r"},
    f"/v1/inventory/{FEW}/adjust": {"delta": 1, "request_no": "r", "reason": "x"},
    f"/v1/inventory/{FEW}/lock": {"qty": 1, "request_no": "r", "reason": "x"},
    "/v1/inventory/query": {"inventory_keys": [FEW]},
    "/v1/reservations/held/extend": {"ttl_seconds": 60},
    "/v1/reservations/confirmed/return": {"reason": "x"},
    "/v1/reservations/held/release": {"reason": "risk"},
    "/v1/reservations/held/confirm": {},
    "/v1/operations": {"operations": [{"op": "confirm", "order_id": "held"}]},
}


def changed(path: str, **fields: Any) -> Case:
    body = json.dumps({**OPERATORS_BODIES[path], **fields}).encode()
    return Case(f"{path} {fields!r:.60}", 422, "INVALID_REQUEST", path=path, body=body)


OTHER_BODIES: Final = [
    *(changed("/v1/inventory", init_quantity=n) for n in (-1, True, 1.0, 2**52 + 1, 2**53 + 1, "1")),
    *(changed("/v1/inventory", inventory_key=key) for key in ("", " a", "a ", "a\n", "ключ", "a" * 129)),
    *(changed("/v1/inventory", request_no=number) for number in ("", "a b", "a" * 65, "№1", 7)),
    *(changed("/v1/inventory", inventory_mode=mode) for mode in ("qty", "SYS_GEN", None)),
    changed("/v1/inventory", per_buyer_limit=1),
    *(changed(f"/v1/inventory/{FEW}/adjust", delta=n) for n in (0, True, 1.0, 2**52 + 1, -(2**52) - 1, 2**53 + 1)),
    *(changed(f"/v1/inventory/{FEW}/adjust", reason=text) for text in ("", "a\nb", "\x00", "\x7f", "x" * 201, 7)),
    *(changed(f"/v1/inventory/{FEW}/adjust", base_inventory_version=n) for n in (-1, True, 2**53, 1.0)),
    *(changed(f"/v1/inventory/{FEW}/lock", qty=n) for n in (0, -1, True, 1.0, 2**52 + 1)),
    *(changed("/v1/inventory/query", inventory_keys=keys) for keys in ([], ["a"] * 501, ["\x00"], "a", [1])),
    *(changed("/v1/reservations/held/extend", ttl_seconds=n) for n in (0, 1.0, True, 86_401)),
    *(changed("/v1/reservations/held/release", reason=reason) for reason in ("expired", "", None, 7)),
    *(changed("/v1/reservations/held/confirm", lines=lines) for lines in ([], [""], [KEY] * 1001, [{}], KEY)),
    changed("/v1/reservations/held/confirm", lines=["not its own"]),
    changed("/v1/reservations/held/confirm", reacquire=True),
    *(changed("/v1/operations", operations=value) for value in ([], {}, None, [{}] * 501)),
]


@pytest.mark.parametrize("case", OTHER_BODIES, ids=str)
async def test_a_field_that_is_wrong(shop: Shop, case: Case) -> None:
    await check(shop, case)


async def test_operations_that_are_wrong_are_refused_each_alone(shop: Shop) -> None:
    elements = [
        b"7",
        b"null",
        b"[]",
        b"{}",
        b'{"op":"nonsense"}',
        b'{"op":"confirm"}',
        b'{"op":"confirm","order_id":"a b"}',
    ]
    twins = [b'{"op":"confirm","order_id":"a","order_id":"b"}', b'{"op":"extend","order_id":"held","ttl_seconds":1.0}']
    deep = b"[" * 500 + b"]" * 500
    body = b'{"operations":[' + b",".join([*elements, *twins, deep]) + b"]}"
    request = Case("", 200, "", path="/v1/operations", body=body)
    async with unchanged(shop):
        status, _, reply = await answer_to(shop, request)
    assert status == 200
    codes = [(result["status"], result["body"]["code"]) for result in reply["results"]]
    assert codes == [(422, "INVALID_REQUEST")] * 7 + [(400, "MALFORMED_JSON")] + [(422, "INVALID_REQUEST")] * 2


# --- paths, methods, keys -------------------------------------------------------------------------------------------------

UNKNOWN_PATHS: Final = (
    "/",
    "//",
    "/v1",
    "/V1/reservations/o",
    "/v1/reservations/a/b/c",
    "/v1/reservations//confirm/",
    "/v1/inventory/a/b/c",
    "/v1/../ops/status",
    "/%761/inventory/query",
    "/" + "x" * 8_000,
)
UNKNOWN_NAMES: Final = ("%", "%zz", "%f", "a%20b", "%00", "%0a", "%ff", "%C3%A4", "%E4%BD%A0", "a" * 65, "%61" * 65)
PATHS: Final = [
    *(Case(f"{path:.40}", 404, "NOT_FOUND", method="GET", path=path) for path in UNKNOWN_PATHS),
    *(
        Case(f"order {name:.40}", 422, "INVALID_REQUEST", method="GET", path=f"/v1/reservations/{name}")
        for name in UNKNOWN_NAMES
        if name not in {"%", "%zz", "%f"}
    ),
    *(
        Case(f"key {name:.40}", 422, "INVALID_REQUEST", method="GET", path=f"/v1/inventory/{name}")
        for name in ("%20a", "a%20", "%00", "%0a", "%ff", "%C3%A4", "k" * 129)
    ),
    # What only looks like an escape is what it is: a percent sign may stand in an id.
    *(
        Case(f"order {name}", 404, "UNKNOWN_ORDER", method="GET", path=f"/v1/reservations/{name}")
        for name in ("%", "%zz", "%f", "..", "%2e%2e", "a%2Fb")
    ),
    Case("no order id", 422, "INVALID_REQUEST", method="GET", path="/v1/reservations/"),
    Case("no key", 422, "INVALID_REQUEST", method="GET", path="/v1/inventory/"),
    Case("task x", 422, "INVALID_REQUEST", method="GET", path="/ops/reconcile/x"),
    Case("task -1", 422, "INVALID_REQUEST", method="GET", path="/ops/reconcile/-1"),
    Case("task 1e3", 422, "INVALID_REQUEST", method="GET", path="/ops/reconcile/1e3"),
    Case("task 99", 404, "UNKNOWN_TASK", method="GET", path="/ops/reconcile/99"),
    *(
        Case(f"{method} {path}", 405, "METHOD_NOT_ALLOWED", method=method, path=path)
        for method, path in (
            ("GET", "/v1/reservations"),
            ("PUT", "/v1/reservations"),
            ("DELETE", "/v1/reservations/held"),
            ("PATCH", "/v1/reservations/held"),
            ("OPTIONS", "/v1/reservations/held/confirm"),
            ("GET", "/v1/reservations/held/confirm"),
            ("GET", "/v1/operations"),
            ("DELETE", f"/v1/inventory/{FEW}"),
            ("POST", "/ops/status"),
            ("TRACE", "/health/live"),
        )
    ),
    Case("a method that nobody knows", 400, "MALFORMED_HTTP", method="FROB"),
]
KEYS: Final = [
    Case("no key", 401, "UNAUTHORIZED", body=reserve(), caller=None),
    *(
        Case(f"key {value:.30}", 401, "UNAUTHORIZED", body=reserve(), headers={"Authorization": value})
        for value in ("", "Bearer", "Bearer ", "Bearer wrong", "Basic YTpi", "Bearer " + "x" * 4_000, "Bearer \xe4")
    ),
    Case("an expired key", 401, "UNAUTHORIZED", body=reserve(), caller="expired"),
    Case("a key without the scope", 403, "FORBIDDEN", body=reserve(), caller="ops"),
    Case("a scope for orders does not operate", 403, "FORBIDDEN", "GET", "/ops/audit", caller="orders"),
    Case("outside the prefix", 403, "FORBIDDEN", body=reserve(), caller="confined"),
    Case("reading outside the prefix", 403, "FORBIDDEN", "GET", f"/v1/inventory/{FEW}", caller="confined"),
    Case(
        "another's order, outside the prefix",
        404,
        "UNKNOWN_ORDER",
        path="/v1/reservations/held/confirm",
        body=b"{}",
        caller="confined",
    ),
    *(
        Case(f"another tenant's order: {call}", 404, "UNKNOWN_ORDER", "POST", f"/v1/reservations/foreign/{call}", body)
        for call, body in (
            ("confirm", b"{}"),
            ("release", b'{"reason":"risk"}'),
            ("consume", b"{}"),
            ("return", b'{"reason":"x"}'),
            ("extend", b'{"ttl_seconds":60}'),
        )
    ),
    Case("reading another tenant's order", 404, "UNKNOWN_ORDER", "GET", "/v1/reservations/foreign"),
]


@pytest.mark.parametrize("case", [*PATHS, *KEYS], ids=str)
async def test_a_path_or_a_key_that_is_wrong(shop: Shop, case: Case) -> None:
    await check(shop, case)


async def test_a_key_above_its_limit_of_requests(shop: Shop) -> None:
    for _ in range(2):
        status, _, _ = await answer_to(shop, Case("", 0, "", "GET", "/v1/reservations/nobody", caller="slow"))
        assert status == 404
    await check(shop, Case("", 429, "TOO_MANY_REQUESTS", body=reserve(), caller="slow"))


async def test_405_names_the_methods_that_there_are(shop: Shop) -> None:
    _, headers, problem = await answer_to(shop, Case("", 405, "", "DELETE", f"/v1/inventory/{FEW}"))
    assert headers["allow"] == "GET"
    assert problem["allowed"] == ["GET"]


# --- what the domain refuses ------------------------------------------------------------------------------------------------


def post(path: str, status: int, code: str, **body: Any) -> Case:
    return Case(f"{code} {path}", status, code, path=path, body=json.dumps(body).encode())


REFUSED: Final = [
    Case("short", 409, "INSUFFICIENT_STOCK", body=reserve(lines=[LINE, {"inventory_key": FEW, "qty": 2}])),
    Case("unknown key", 404, "UNKNOWN_INVENTORY_KEY", body=reserve(lines=[LINE, {"inventory_key": "none", "qty": 1}])),
    Case("other lines", 409, "ORDER_CONFLICT", body=reserve(order_id="held", lines=[{**LINE, "qty": 2}])),
    Case("ended", 409, "ORDER_CLOSED", body=reserve(order_id="released")),
    post("/v1/reservations/confirmed/release", 409, "ILLEGAL_TRANSITION", reason="risk"),
    post("/v1/reservations/held/consume", 409, "ILLEGAL_TRANSITION"),
    post("/v1/reservations/released/confirm", 409, "ILLEGAL_TRANSITION"),
    post("/v1/reservations/nobody/confirm", 404, "UNKNOWN_ORDER"),
    post("/v1/inventory/none/adjust", 404, "UNKNOWN_INVENTORY_KEY", delta=1, request_no="r", reason="x"),
    post(f"/v1/inventory/{FEW}/adjust", 409, "INSUFFICIENT_STOCK", delta=-9, request_no="r", reason="x"),
    post(f"/v1/inventory/{FEW}/adjust", 409, "QUANTITY_LIMIT", delta=2**52, request_no="r", reason="x"),
    post(
        f"/v1/inventory/{FEW}/adjust",
        409,
        "VERSION_CONFLICT",
        delta=1,
        request_no="r",
        reason="x",
        base_inventory_version=77,
    ),
    post(f"/v1/inventory/{FEW}/lock", 409, "REQUEST_CONFLICT", qty=2, request_no="lock-1", reason="x"),
    post(f"/v1/inventory/{FEW}/unlock", 409, "INSUFFICIENT_STOCK", qty=9, request_no="r", reason="x"),
    post(
        "/v1/inventory",
        409,
        "REQUEST_CONFLICT",
        inventory_key=FEW,
        item_id="other",
        inventory_mode="QTY",
        request_no="r",
    ),
]


@pytest.mark.parametrize("case", REFUSED, ids=str)
async def test_a_call_that_the_domain_refuses(shop: Shop, case: Case) -> None:
    await check(shop, case)


# --- heads that are wrong, and what is no HTTP ------------------------------------------------------------------------------


def spoken(text: str) -> bytes:
    return text.replace("\n", "\r\n").encode("latin-1")


def sized(total: int) -> bytes:
    """A request for an order that is not there whose head has exactly so many bytes."""
    start, end = b"GET /v1/reservations/nobody HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Fill: ", b"\r\n\r\n"
    return start + b"x" * (total - len(start) - len(end)) + end


MANY: Final = {f"X-{number}": "1" for number in range(limits.HEADERS_MAX)}
HEADS: Final = [
    Case("garbage", 400, "MALFORMED_HTTP", raw=b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100),
    Case("words", 400, "MALFORMED_HTTP", raw=spoken("please give me stock\n\n")),
    Case("HTTP/2 without asking", 400, "MALFORMED_HTTP", raw=b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    Case("a version of its own", 400, "MALFORMED_HTTP", raw=spoken("GET /health/live HTTP/9.9\nHost: x\n\n")),
    Case("a header without a colon", 400, "MALFORMED_HTTP", raw=spoken("GET / HTTP/1.1\nHost x\n\n")),
    Case("a NUL in a header", 400, "MALFORMED_HTTP", raw=spoken("GET / HTTP/1.1\nHost: x\nX-A: a\0b\n\n")),
    Case("a space in the path", 400, "MALFORMED_HTTP", raw=spoken("GET /v1/reservations/a b HTTP/1.1\nHost: x\n\n")),
    Case(
        "two lengths",
        400,
        "MALFORMED_HTTP",
        raw=spoken("POST / HTTP/1.1\nHost: x\nContent-Length: 1\nContent-Length: 2\n\n"),
    ),
    Case("a length that is none", 400, "MALFORMED_HTTP", body=b"{}", headers={"Content-Length": "two"}),
    Case("a negative length", 400, "MALFORMED_HTTP", body=b"{}", headers={"Content-Length": "-1"}),
    Case("a length of many digits", 400, "MALFORMED_HTTP", body=b"{}", headers={"Content-Length": "9" * 40}),
    Case(
        "length and chunks",
        400,
        "MALFORMED_HTTP",
        body=b"0\r\n\r\n",
        headers={"Content-Length": "5", "Transfer-Encoding": "chunked"},
    ),
    Case(
        "a chunk that is none",
        400,
        "MALFORMED_HTTP",
        body=b"zz\r\n{}\r\n0\r\n\r\n",
        headers={"Transfer-Encoding": "chunked"},
    ),
    Case("CONNECT", 400, "MALFORMED_HTTP", raw=spoken("CONNECT example.org:443 HTTP/1.1\nHost: x\n\n")),
    Case("too many headers", 431, "HEAD_TOO_LARGE", body=reserve(), headers=MANY),
    Case("one byte too many in the head", 431, "HEAD_TOO_LARGE", raw=sized(limits.HEAD_BYTES_MAX + 1)),
    Case("a very long header", 431, "HEAD_TOO_LARGE", body=reserve(), headers={"X-Long": "x" * 300_000}),
    Case("a very long path", 431, "HEAD_TOO_LARGE", "GET", "/v1/reservations/" + "x" * 300_000),
    Case("a head that never ends", 431, "HEAD_TOO_LARGE", raw=b"GET / HTTP/1.1\r\n" + b"X-A: aaaaaaaaaa\r\n" * 60_000),
    Case("a header name that never ends", 431, "HEAD_TOO_LARGE", raw=b"GET / HTTP/1.1\r\n" + b"x" * 300_000),
    Case("a head of the greatest size", 401, "UNAUTHORIZED", raw=sized(limits.HEAD_BYTES_MAX)),
]


@pytest.mark.parametrize("case", HEADS, ids=str)
async def test_a_head_that_is_wrong(shop: Shop, case: Case) -> None:
    await check(shop, case)
    async with unchanged(shop):
        assert (await shop.world.call("GET", "/v1/reservations/held")).status_code == 200


@pytest.mark.parametrize("case", [BODIES[0], *KEYS[:3], *PATHS[:2]], ids=str)
async def test_a_refusal_says_nothing_that_it_should_not(shop: Shop, case: Case) -> None:
    """No word of the inside: no name of a store, no file, no class, no line of a program."""
    _, headers, problem = await answer_to(shop, case)
    said = json.dumps(problem) + json.dumps(headers)
    assert not re.search(r"redis|mysql|rabbit|uvicorn|python|traceback|\.py|msgspec|0x[0-9a-f]{6}", said, re.IGNORECASE)
