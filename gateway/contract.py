"""The contract as a table: every call of this process, who may make it, and what it can come to."""

from typing import Final

from gateway import health, inventory, modes, operations, operators, requests, reservations
from gateway.call import OPEN, Endpoint
from gateway.docs_page import serve_page
from gateway.openapi import serve_document
from gateway.replies import InventoryReply, OrderReply, QuantitiesReply, ResultsReply
from inventory.explain_key import KeyExplanation
from inventory.explain_order import OrderExplanation
from inventory.operator_actions import ActionPage
from kernel import limits

ORDERS: Final = frozenset({"orders"})
INVENTORY: Final = frozenset({"inventory"})
READ_INVENTORY: Final = frozenset({"inventory", "orders"})
OPS: Final = frozenset({"ops"})
METRICS: Final = frozenset({"metrics", "ops"})

_STORES: Final = ("UNAVAILABLE", "SHARD_CLOSED", "KEY_FROZEN")
_RESERVE: Final = ("INSUFFICIENT_STOCK", "ORDER_CONFLICT", "ORDER_CLOSED", "UNKNOWN_INVENTORY_KEY", *_STORES)
_SETTLE: Final = ("UNKNOWN_ORDER", "ILLEGAL_TRANSITION", *_STORES)
_HOLD: Final = ("HOLD_EXPIRED", *_SETTLE)
_CHANGE: Final = ("UNKNOWN_INVENTORY_KEY", "INSUFFICIENT_STOCK", "REQUEST_CONFLICT", "QUANTITY_LIMIT", *_STORES)
_ORDER: Final = {200: OrderReply}
_QUANTITIES: Final = {200: QuantitiesReply}

_RESERVATIONS: Final = (
    Endpoint(
        "POST",
        "/v1/reservations",
        ORDERS,
        reservations.reserve,
        "Hold stock for an order, all lines or none.",
        requests.Reserve,
        {201: OrderReply, 200: OrderReply},
        _RESERVE,
        changes_stock=True,
    ),
    Endpoint(
        "POST",
        "/v1/reservations/{order_id}/confirm",
        ORDERS,
        reservations.confirm,
        "The order is paid.",
        requests.Confirm,
        _ORDER,
        _HOLD,
        changes_stock=True,
    ),
    Endpoint(
        "POST",
        "/v1/reservations/{order_id}/release",
        ORDERS,
        reservations.release,
        "Give back what is held and not paid.",
        requests.Release,
        _ORDER,
        _SETTLE,
        changes_stock=True,
    ),
    Endpoint(
        "POST",
        "/v1/reservations/{order_id}/consume",
        ORDERS,
        reservations.consume,
        "Handed over or shipped.",
        requests.Consume,
        _ORDER,
        _SETTLE,
        changes_stock=True,
    ),
    Endpoint(
        "POST",
        "/v1/reservations/{order_id}/return",
        ORDERS,
        reservations.return_,
        "Cancelled after payment, not yet handed over.",
        requests.Return,
        _ORDER,
        _SETTLE,
        changes_stock=True,
    ),
    Endpoint(
        "POST",
        "/v1/reservations/{order_id}/extend",
        ORDERS,
        reservations.extend,
        "Hold for longer.",
        requests.Extend,
        _ORDER,
        _HOLD,
        changes_stock=True,
    ),
    Endpoint(
        "GET",
        "/v1/reservations/{order_id}",
        ORDERS,
        reservations.read_order,
        "Read an order.",
        None,
        _ORDER,
        ("UNKNOWN_ORDER", *_STORES),
    ),
    Endpoint(
        "POST",
        "/v1/operations",
        ORDERS,
        operations.operations,
        "Up to 500 operations, each independent, in order.",
        requests.Operations,
        {200: ResultsReply},
        changes_stock=True,
        body_bytes_max=limits.OPERATIONS_BODY_BYTES_MAX,
    ),
)

_INVENTORY: Final = (
    Endpoint(
        "POST",
        "/v1/inventory",
        INVENTORY,
        inventory.create_inventory,
        "Create a key with its first quantity.",
        requests.CreateInventory,
        {201: InventoryReply, 200: InventoryReply},
        _CHANGE,
        changes_stock=True,
    ),
    Endpoint(
        "GET",
        "/v1/inventory/{key}",
        READ_INVENTORY,
        inventory.read_inventory,
        "Read a key.",
        None,
        {200: InventoryReply},
        ("UNKNOWN_INVENTORY_KEY",),
    ),
    Endpoint(
        "POST",
        "/v1/inventory/query",
        READ_INVENTORY,
        inventory.query_inventory,
        "Read up to 500 keys.",
        requests.QueryInventory,
        {200: ResultsReply},
    ),
    Endpoint(
        "POST",
        "/v1/inventory/{key}/adjust",
        INVENTORY,
        inventory.adjust,
        "Stock that came or went.",
        requests.Adjust,
        _QUANTITIES,
        ("VERSION_CONFLICT", *_CHANGE),
        changes_stock=True,
    ),
    Endpoint(
        "POST",
        "/v1/inventory/{key}/lock",
        INVENTORY,
        inventory.lock,
        "Take available stock out of sale.",
        requests.LockUnlock,
        _QUANTITIES,
        _CHANGE,
        changes_stock=True,
    ),
    Endpoint(
        "POST",
        "/v1/inventory/{key}/unlock",
        INVENTORY,
        inventory.unlock,
        "Put locked stock back into sale.",
        requests.LockUnlock,
        _QUANTITIES,
        _CHANGE,
        changes_stock=True,
    ),
)

_OPERATORS: Final = (
    Endpoint("GET", "/ops/status", OPS, operators.status, "How it stands.", gives={200: operators.StatusReply}),
    Endpoint("GET", "/ops/audit", OPS, operators.read_audit, "The invariants.", gives={200: operators.AuditReply}),
    Endpoint(
        "GET",
        "/ops/mode",
        OPS,
        modes.read_mode,
        "Who decides, and how far a switch is.",
        gives={200: modes.ModeReply},
        query=requests.ModeQuery,
    ),
    Endpoint(
        "PUT",
        "/ops/mode",
        OPS,
        modes.switch_mode,
        "Let Redis or MySQL decide from now on.",
        requests.SwitchMode,
        {202: modes.SwitchBegunReply, 200: modes.SwitchBegunReply},
        ("SWITCH_RUNNING",),
    ),
    Endpoint(
        "DELETE",
        "/ops/mode/switch",
        OPS,
        modes.abort_switch,
        "Give up the switch that runs.",
        gives={200: modes.SwitchBegunReply},
        problems=("NO_SWITCH", "SWITCH_TOO_LATE"),
        query=requests.AbortSwitchQuery,
    ),
    Endpoint(
        "POST",
        "/ops/reconcile",
        OPS,
        operators.reconcile,
        "Ask for a comparison of the stores.",
        requests.Reconcile,
        {202: operators.TaskCreatedReply},
    ),
    Endpoint(
        "GET",
        "/ops/actions",
        OPS,
        operators.actions,
        "What operators did, why, and what came of it.",
        gives={200: ActionPage},
        query=requests.ActionsQuery,
    ),
    Endpoint(
        "GET",
        "/ops/inventory/{key}/explain",
        OPS,
        operators.explain_inventory,
        "Why a key's number is what it is, and what to do about it.",
        gives={200: KeyExplanation},
        problems=("UNKNOWN_INVENTORY_KEY",),
        query=requests.ExplainKeyQuery,
    ),
    Endpoint(
        "GET",
        "/ops/orders/{order_id}",
        OPS,
        operators.explain_order,
        "Why an order stands as it does, and what to do about it.",
        gives={200: OrderExplanation},
        problems=("UNKNOWN_ORDER",),
        query=requests.ExplainOrderQuery,
    ),
    Endpoint(
        "GET",
        "/ops/reconcile/{id}",
        OPS,
        operators.read_reconcile,
        "Read a comparison.",
        gives={200: operators.TaskReply},
        problems=("UNKNOWN_TASK",),
    ),
)

_PROCESS: Final = (
    Endpoint("GET", "/health/live", OPEN, health.live, "The process lives.", gives={200: health.LiveReply}),
    Endpoint(
        "GET",
        "/health/ready",
        OPEN,
        health.ready,
        "Whether anything is missing, and what.",
        gives={200: health.ReadyReply, 503: health.ReadyReply},
    ),
    Endpoint("GET", "/metrics", METRICS, health.metrics, "Metrics in Prometheus' text format.", gives={200: None}),
)


def contract(
    version: str, more: tuple[Endpoint, ...] = (), ttl_seconds_max: int = limits.TTL_SECONDS_MAX
) -> tuple[Endpoint, ...]:
    """All endpoints, `more` among them, with the document about them and the page to read it."""
    described = (*_RESERVATIONS, *_INVENTORY, *_OPERATORS, *_PROCESS, *more)
    document = serve_document(described, version, ttl_seconds_max)
    return (
        *described,
        Endpoint("GET", "/openapi.json", OPEN, document, "This document.", gives={200: None}),
        Endpoint("GET", "/docs", OPEN, serve_page(), "This document, to read.", gives={200: None}),
    )
