"""Every bound of the system in one place, with the relations that must hold between them.

Sizes are bytes, counts are plain numbers, durations carry their unit in the name. A bound that an operator may tune
lives in `kernel.settings`; its default and its ceiling are here.
"""

from typing import Final

# What a caller may send.
INVENTORY_KEY_CHARS_MAX: Final = 128
ORDER_ID_CHARS_MAX: Final = 64
TENANT_CHARS_MAX: Final = 32
REASON_CHARS_MAX: Final = 200
TRACE_ID_CHARS_MAX: Final = 64
LINES_PER_ORDER_MAX: Final = 1_000
QTY_MAX: Final = 1_000_000
OPERATIONS_PER_REQUEST_MAX: Final = 500
QUERY_KEYS_MAX: Final = 500
# Rows of one page of a timeline or of the operators' actions, and characters of a query in an address.
PAGE_ROWS_DEFAULT: Final = 50
PAGE_ROWS_MAX: Final = 500
QUERY_CHARS_MAX: Final = 1_024
BODY_BYTES_MAX: Final = 256 * 1024
OPERATIONS_BODY_BYTES_MAX: Final = 1024 * 1024
TTL_SECONDS_MAX: Final = 30 * 24 * 3600
# Of one request's head: its bytes, its headers, and the time it may take; looked at once a second.
HEAD_BYTES_MAX: Final = 16 * 1024
HEADERS_MAX: Final = 64
HEAD_READ_MS_MAX: Final = 10_000
# From the end of the request's head to the last byte of its body.
BODY_READ_MS_MAX: Final = 10_000
# What is still read, and thrown away, of a connection whose request was refused before its end.
DISCARDED_BYTES_MAX: Final = 4 * 1024 * 1024
# How long a caller may leave an answer, or the end of its connection, unread.
ANSWER_WRITE_MS_MAX: Final = 30_000

# Lua keeps numbers as doubles; everything that can be summed stays far below the exact range.
EXACT_INTEGER_MAX: Final = 2**53 - 1
QUANTITY_TOTAL_MAX: Final = 2**52

# One script call. A script blocks the whole server, so its loops are bounded by these.
BATCH_OPERATIONS_MAX: Final = 512
BATCH_LINES_MAX: Final = 1_000
BATCH_QUEUE_OPERATIONS_MAX: Final = 8_192
BATCH_OPEN_OPERATIONS_MAX: Final = 32_768
DECIDE_ROUNDS_MAX: Final = 6
LOAD_KEYS_MAX: Final = 1_000
LOAD_ORDERS_MAX: Final = 512
LOAD_ORDER_LINES_MAX: Final = 4_000
EXPIRE_ORDERS_MAX: Final = 256
# Lines of known orders that one deciding call walks, in Lua or in one transaction of MySQL.
DECIDE_LINES_MAX: Final = 4_000
EVICT_RECORDS_MAX: Final = 1_000
TRIM_ENTRIES_KEPT: Final = 2_048
# The filter of orders that left Redis: eight million of them with two or three wrong answers in a thousand.
FILTER_BYTES: Final = 16 * 1024 * 1024
FILTER_PAGE_ORDERS: Final = 500

# The leader's relay.
RELAY_READ_ENTRIES_MAX: Final = 200
RELAY_MESSAGE_BYTES_MAX: Final = 1024 * 1024
RELAY_IN_FLIGHT_MAX: Final = 4

# While MySQL decides.
DB_OPEN_OPERATIONS_MAX: Final = 2_048
"""In db mode a gateway has so many operations open at most; what is more hears 429 before MySQL's sessions are all busy."""
DB_KEY_OPEN_OPERATIONS_MAX: Final = 512
"""And so many that name one key, so that a hot one never takes all the room. More than a request may have."""

# The persist worker.
WORKER_BATCH_EVENTS_MAX: Final = 2_000
WORKER_GATHER_MS: Final = 50
WORKER_PREFETCH_MESSAGES: Final = 64
WORKER_HELD_MESSAGES_MAX: Final = 16
WORKER_PARKED_EVENTS_MAX: Final = 100_000
DELIVERY_LIMIT: Final = 1_000_000

# Time.
SHARD_POLL_MS: Final = 500
CLOCK_SKEW_MS_MAX: Final = 5_000
# A statement of the audit reads a whole table: the limit of the statements that decide would end it on a full one.
AUDIT_STATEMENT_MS_MAX: Final = 600_000

# Relations. A wrong edit fails at import, with the reason beside it.
assert LINES_PER_ORDER_MAX <= BATCH_LINES_MAX, "one order must fit into one call"
assert OPERATIONS_PER_REQUEST_MAX <= BATCH_OPERATIONS_MAX, "one request's operations must fit into one call"
assert LINES_PER_ORDER_MAX * QTY_MAX < QUANTITY_TOTAL_MAX, "one order cannot overflow a quantity"
assert 2 * QUANTITY_TOTAL_MAX <= EXACT_INTEGER_MAX + 1, "a sum of two quantities stays exact in Lua"
assert BATCH_OPERATIONS_MAX <= BATCH_QUEUE_OPERATIONS_MAX, "the queue holds at least one batch"
assert BATCH_QUEUE_OPERATIONS_MAX <= BATCH_OPEN_OPERATIONS_MAX, (
    "what waits for a call is open, and so is what was called"
)
assert WORKER_HELD_MESSAGES_MAX < WORKER_PREFETCH_MESSAGES, "held messages must leave room for the missing one"
