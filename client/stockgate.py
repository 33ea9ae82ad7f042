"""The client: one method for each call of the contract."""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar
from urllib.parse import quote

import httpx2
import msgspec

from .answers import Answer, Done, OperationResult, Refused, Unanswered
from .exchange import Exchange, Reply, read_problem
from .failures import BadReply, ClientError, NotExecuted, OutcomeUnknown
from .operations import Confirm, Consume, Extend, Line, Operation, Release, Reserve, Return
from .replies import (
    AuditReport,
    Inventory,
    KeyResult,
    KeyResults,
    Mode,
    Order,
    Quantities,
    ResultBodies,
    ResultBody,
    Status,
    SwitchBegun,
)
from .retries import Retries

Value = TypeVar("Value")
Lines = Mapping[str, int] | Sequence[Line]
ReleaseReason = Literal["cancelled", "payment_failed", "risk"]

_encoder = msgspec.json.Encoder()


class StockgateClient:
    """Speaks to one service over connections that it keeps. Use as an async context manager, or call `aclose`.

    `transport` replaces the network, for example by `httpx2.ASGITransport(app)`. Every method returns `Done` or `Refused`
    and raises the failures of `client.failures`; `deadline_s` overrides that of `retries` for one call.
    """

    def __init__(
        self,
        base_url: str,
        key: str,
        *,
        retries: Retries | None = None,
        connections_max: int = 128,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._retries = retries or Retries()
        self._http = httpx2.AsyncClient(
            base_url=base_url,
            headers={
                "authorization": f"Bearer {key}",
                "content-type": "application/json",
                "accept-encoding": "identity",
            },
            # The attempt's own limit covers everything; these only keep one phase from eating all of it.
            timeout=httpx2.Timeout(self._retries.attempt_s, connect=min(3.0, self._retries.attempt_s)),
            limits=httpx2.Limits(
                max_connections=connections_max, max_keepalive_connections=connections_max, keepalive_expiry=4.0
            ),
            transport=transport,
            # A proxy from the environment would be a surprise between two services of one house.
            trust_env=False,
        )
        self._exchange = Exchange(self._http, self._retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    # Reservations.

    async def reserve(
        self,
        order_id: str,
        lines: Lines,
        *,
        ttl_seconds: int | None = None,
        buyer_id: str | None = None,
        traceparent: str | None = None,
        deadline_s: float | None = None,
    ) -> Answer[Order]:
        """Hold stock: all lines or none. Refused: INSUFFICIENT_STOCK, ORDER_CONFLICT, ORDER_CLOSED, UNKNOWN_INVENTORY_KEY."""
        asked = Reserve(order_id=order_id, lines=_lines(lines), ttl_seconds=ttl_seconds, buyer_id=buyer_id)
        return await self._post("/v1/reservations", _body(asked), Order, traceparent, deadline_s)

    async def confirm(
        self,
        order_id: str,
        *,
        lines: Sequence[str] | None = None,
        traceparent: str | None = None,
        deadline_s: float | None = None,
    ) -> Answer[Order]:
        """The order is paid. Refused: UNKNOWN_ORDER, HOLD_EXPIRED, ILLEGAL_TRANSITION."""
        return await self._move(Confirm(order_id=order_id, lines=_keys(lines)), "confirm", traceparent, deadline_s)

    async def release(
        self,
        order_id: str,
        reason: ReleaseReason,
        *,
        lines: Sequence[str] | None = None,
        traceparent: str | None = None,
        deadline_s: float | None = None,
    ) -> Answer[Order]:
        """Give back what is held. Releasing what expired is a replay."""
        asked = Release(order_id=order_id, reason=reason, lines=_keys(lines))
        return await self._move(asked, "release", traceparent, deadline_s)

    async def consume(
        self,
        order_id: str,
        *,
        lines: Sequence[str] | None = None,
        traceparent: str | None = None,
        deadline_s: float | None = None,
    ) -> Answer[Order]:
        """Handed over or shipped."""
        return await self._move(Consume(order_id=order_id, lines=_keys(lines)), "consume", traceparent, deadline_s)

    async def return_(
        self,
        order_id: str,
        reason: str,
        *,
        lines: Sequence[str] | None = None,
        traceparent: str | None = None,
        deadline_s: float | None = None,
    ) -> Answer[Order]:
        """Cancelled after payment, before it was handed over."""
        asked = Return(order_id=order_id, reason=reason, lines=_keys(lines))
        return await self._move(asked, "return", traceparent, deadline_s)

    async def extend(
        self, order_id: str, ttl_seconds: int, *, traceparent: str | None = None, deadline_s: float | None = None
    ) -> Answer[Order]:
        """Hold for `ttl_seconds` from now; an earlier due time than the present one is a replay."""
        return await self._move(Extend(order_id=order_id, ttl_seconds=ttl_seconds), "extend", traceparent, deadline_s)

    async def order(self, order_id: str, *, deadline_s: float | None = None) -> Answer[Order]:
        """Read an order as it stands."""
        reply = await self._exchange.call("GET", f"/v1/reservations/{_quoted(order_id)}", None, {}, deadline_s)
        return _answer(reply, Order)

    async def operations(
        self, operations: Sequence[Operation], *, traceparent: str | None = None, deadline_s: float | None = None
    ) -> list[OperationResult[Order]]:
        """Up to 500 operations in one request, in order and each independent; results in the same order.

        Those that were not executed or are unknown are sent again, alone, until the deadline; what is then still so is
        `Unanswered`. Raises the failures of `client.failures` only where nothing at all was answered.
        """
        results: dict[int, OperationResult[Order]] = {}
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self._retries.deadline_s if deadline_s is None else deadline_s)
        asked = list(range(len(operations)))
        attempt = 0
        while asked:
            attempt += 1
            body = _encoder.encode({"operations": [operations[index] for index in asked]})
            try:
                reply = await self._exchange.call(
                    "POST", "/v1/operations", body, _trace(traceparent), max(0.0, deadline - loop.time())
                )
            except (OutcomeUnknown, NotExecuted) as failure:
                if not results:
                    raise
                _keep_unanswered(results, asked, failure)
                break
            for index, result in zip(asked, _operation_results(reply, len(asked)), strict=True):
                before = results.get(index)
                lost = isinstance(before, Unanswered) and before.outcome == "unknown"
                results[index] = _after_unknown(result) if lost else result
            asked = [index for index in asked if isinstance(results[index], Unanswered)]
            pause_s = self._retries.pause_s(attempt, None)
            if not asked or loop.time() + pause_s >= deadline:
                break
            await asyncio.sleep(pause_s)
        return [results[index] for index in range(len(operations))]

    # Inventory.

    async def create_inventory(
        self,
        inventory_key: str,
        *,
        item_id: str,
        request_no: str,
        init_quantity: int = 0,
        deadline_s: float | None = None,
    ) -> Answer[Inventory]:
        """Create a key of mode QTY with its first quantity. Refused: REQUEST_CONFLICT."""
        body = _encoder.encode(
            {
                "inventory_key": inventory_key,
                "item_id": item_id,
                "inventory_mode": "QTY",
                "init_quantity": init_quantity,
                "request_no": request_no,
            }
        )
        return await self._post("/v1/inventory", body, Inventory, None, deadline_s)

    async def inventory(self, inventory_key: str, *, deadline_s: float | None = None) -> Answer[Inventory]:
        """Read one key."""
        reply = await self._exchange.call("GET", f"/v1/inventory/{_quoted(inventory_key)}", None, {}, deadline_s)
        return _answer(reply, Inventory)

    async def query_inventory(
        self, inventory_keys: Sequence[str], *, deadline_s: float | None = None
    ) -> list[Answer[Inventory]]:
        """Read up to 500 keys; answers in the order of the keys."""
        body = _encoder.encode({"inventory_keys": list(inventory_keys)})
        reply = await self._exchange.call("POST", "/v1/inventory/query", body, {}, deadline_s)
        if isinstance(reply, Refused):
            raise BadReply(f"query: refused as a whole with {reply.code}", reply.problem)
        return [_key_answer(one) for one in _decode(reply.body, KeyResults).results]

    async def adjust(
        self,
        inventory_key: str,
        delta: int,
        *,
        request_no: str,
        reason: str,
        base_inventory_version: int | None = None,
        approval_no: str | None = None,
        deadline_s: float | None = None,
    ) -> Answer[Quantities]:
        """Add or take away stock. Refused: VERSION_CONFLICT, INSUFFICIENT_STOCK, REQUEST_CONFLICT, QUANTITY_LIMIT."""
        body = _encoder.encode(
            _given(
                delta=delta,
                request_no=request_no,
                reason=reason,
                base_inventory_version=base_inventory_version,
                approval_no=approval_no,
            )
        )
        return await self._post(f"/v1/inventory/{_quoted(inventory_key)}/adjust", body, Quantities, None, deadline_s)

    async def lock(
        self, inventory_key: str, qty: int, *, request_no: str, reason: str, deadline_s: float | None = None
    ) -> Answer[Quantities]:
        """Take available stock out of sale."""
        body = _encoder.encode({"qty": qty, "request_no": request_no, "reason": reason})
        return await self._post(f"/v1/inventory/{_quoted(inventory_key)}/lock", body, Quantities, None, deadline_s)

    async def unlock(
        self, inventory_key: str, qty: int, *, request_no: str, reason: str, deadline_s: float | None = None
    ) -> Answer[Quantities]:
        """Put locked stock back into sale."""
        body = _encoder.encode({"qty": qty, "request_no": request_no, "reason": reason})
        return await self._post(f"/v1/inventory/{_quoted(inventory_key)}/unlock", body, Quantities, None, deadline_s)

    # Operators.

    async def status(self, *, deadline_s: float | None = None) -> Status:
        """What `/ops/status` says now."""
        return await self._read("/ops/status", Status, deadline_s)

    async def audit(self, *, deadline_s: float | None = None) -> AuditReport:
        """The invariants over everything; may take long, so give it a deadline."""
        return await self._read("/ops/audit", AuditReport, deadline_s)

    async def mode(self, *, deadline_s: float | None = None) -> Mode:
        """Who decides, and how far a switch is."""
        return await self._read("/ops/mode", Mode, deadline_s)

    async def switch_mode(self, to_mode: str, *, reason: str, deadline_s: float | None = None) -> Answer[SwitchBegun]:
        """Let Redis (`hot`) or MySQL (`db`) decide from now on. Refused: SWITCH_RUNNING, by an own earlier attempt too."""
        body = _encoder.encode({"mode": to_mode, "reason": reason})
        return _answer(await self._exchange.call("PUT", "/ops/mode", body, {}, deadline_s), SwitchBegun)

    async def abort_switch(self, *, reason: str, deadline_s: float | None = None) -> Answer[SwitchBegun]:
        """Give up the switch that runs. Refused: NO_SWITCH, SWITCH_TOO_LATE."""
        path = f"/ops/mode/switch?reason={quote(reason, safe='')}"
        return _answer(await self._exchange.call("DELETE", path, None, {}, deadline_s), SwitchBegun)

    async def _read(self, path: str, kind: type[Value], deadline_s: float | None) -> Value:
        reply = await self._exchange.call("GET", path, None, {}, deadline_s)
        if isinstance(reply, Refused):
            raise BadReply(f"{path}: {reply.code}", reply.problem)
        return _decode(reply.body, kind)

    async def _move(
        self, asked: Operation, verb: str, traceparent: str | None, deadline_s: float | None
    ) -> Answer[Order]:
        path = f"/v1/reservations/{_quoted(asked.order_id)}/{verb}"
        return await self._post(path, _body(asked, "order_id"), Order, traceparent, deadline_s)

    async def _post(
        self, path: str, body: bytes, kind: type[Value], traceparent: str | None, deadline_s: float | None
    ) -> Answer[Value]:
        return _answer(await self._exchange.call("POST", path, body, _trace(traceparent), deadline_s), kind)


def _lines(lines: Lines) -> list[Line]:
    if isinstance(lines, Mapping):
        return [Line(inventory_key, qty) for inventory_key, qty in lines.items()]
    return list(lines)


def _keys(lines: Sequence[str] | None) -> list[str] | None:
    return None if lines is None else list(lines)


def _quoted(name: str) -> str:
    """A key or id as one path segment. Dots too, for `..` alone would be taken for the folder above."""
    return quote(name, safe="").replace(".", "%2E")


def _trace(traceparent: str | None) -> dict[str, str]:
    return {} if traceparent is None else {"traceparent": traceparent}


def _body(asked: Operation, *but: str) -> bytes:
    fields: dict[str, object] = msgspec.structs.asdict(asked)
    return _encoder.encode({name: value for name, value in fields.items() if value is not None and name not in but})


def _given(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _decode(body: bytes | msgspec.Raw, kind: type[Value]) -> Value:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReply(f"not a {kind.__name__}: {error}") from error


def _answer(reply: Reply | Refused, kind: type[Value]) -> Answer[Value]:
    if isinstance(reply, Refused):
        return reply
    return Done(
        _decode(reply.body, kind),
        replay=reply.headers.get("idempotent-replay") == "true",
        durability=reply.headers.get("durability"),
        status=reply.status,
        after_unknown=reply.after_unknown,
    )


def _key_answer(one: KeyResult) -> Answer[Inventory]:
    if one.status < 300:
        return Done(_decode(one.body, Inventory), status=one.status)
    problem = read_problem(one.body)
    if problem is None:
        raise BadReply(f"a result with status {one.status} without a problem")
    return Refused(problem.code, one.status, problem)


def _operation_results(reply: Reply | Refused, count: int) -> list[OperationResult[Order]]:
    if isinstance(reply, Refused):
        raise BadReply(f"operations: refused as a whole with {reply.code}", reply.problem)
    bodies = _decode(reply.body, ResultBodies).results
    if len(bodies) != count:
        raise BadReply(f"operations: {len(bodies)} results for {count} operations")
    durability = reply.headers.get("durability")
    results = [_operation_result(one, durability) for one in bodies]
    return [_after_unknown(result) for result in results] if reply.after_unknown else results


def _operation_result(one: ResultBody, durability: str | None) -> OperationResult[Order]:
    if one.status < 300:
        return Done(_decode(one.body, Order), replay=one.replay, durability=durability, status=one.status)
    problem = read_problem(one.body)
    if problem is None:
        raise BadReply(f"a result with status {one.status} without a problem")
    if one.status >= 500:
        return Unanswered(problem.outcome or "unknown", problem)
    return Refused(problem.code, one.status, problem)


def _after_unknown(result: OperationResult[Order]) -> OperationResult[Order]:
    """The same result for an operation that an earlier attempt may have carried out."""
    if isinstance(result, Unanswered):
        return msgspec.structs.replace(result, outcome="unknown")
    return msgspec.structs.replace(result, after_unknown=True)


def _keep_unanswered(results: dict[int, OperationResult[Order]], asked: list[int], failure: ClientError) -> None:
    """A repeat of the open operations failed as a whole: what is known of the others is still worth returning."""
    if isinstance(failure, OutcomeUnknown):
        results.update({index: Unanswered("unknown", failure.problem) for index in asked})
