"""The typed async client of the HTTP contract; `stockgate_client` when it is installed alone.

Imports nothing of ours. Refusals are values (`Refused`), failures are exceptions (`client.failures`).
"""

from .answers import Answer, Done, OperationResult, Problem, Refused, Unanswered
from .failures import (
    BadReply,
    BadRequest,
    ClientError,
    Forbidden,
    NotExecuted,
    OutcomeUnknown,
    Unauthorized,
)
from .operations import Confirm, Consume, Extend, Line, Operation, Release, Reserve, Return
from .replies import (
    AuditCheck,
    AuditReport,
    ErrorLine,
    Inventory,
    KeyResult,
    Mode,
    Order,
    OrderLine,
    Quantities,
    ShardStatus,
    Status,
    Switch,
    SwitchBegun,
    SwitchStep,
)
from .retries import Retries
from .stockgate import StockgateClient

__all__ = [
    "Answer",
    "AuditCheck",
    "AuditReport",
    "BadReply",
    "BadRequest",
    "ClientError",
    "Confirm",
    "Consume",
    "Done",
    "ErrorLine",
    "Extend",
    "Forbidden",
    "Inventory",
    "KeyResult",
    "Line",
    "Mode",
    "NotExecuted",
    "Operation",
    "OperationResult",
    "Order",
    "OrderLine",
    "OutcomeUnknown",
    "Problem",
    "Quantities",
    "Refused",
    "Release",
    "Reserve",
    "Retries",
    "Return",
    "ShardStatus",
    "Status",
    "StockgateClient",
    "Switch",
    "SwitchBegun",
    "SwitchStep",
    "Unanswered",
    "Unauthorized",
]
