-- What a decision can come to: the same numbers as `inventory/outcomes.py`, which tests/lua holds them to.
-- A part for other scripts. KEYS: none. ARGV: none. Returns nothing; defines OUTCOME, STATUS and REFUSED.

local OUTCOME = {
  DONE = 0, INSUFFICIENT_STOCK = 1, ORDER_CONFLICT = 2, ORDER_CLOSED = 3, ILLEGAL_TRANSITION = 4, HOLD_EXPIRED = 5,
  UNKNOWN_ORDER = 6, UNKNOWN_INVENTORY_KEY = 7, VERSION_CONFLICT = 8, REQUEST_CONFLICT = 9, UNKNOWN_LINE = 10,
  QUANTITY_LIMIT = 11,
  NOT_LOADED = 20, NEED_LOOKUP = 21, SKIPPED = 22, KEY_FROZEN = 23, LOST = 24, OVERLOADED = 25,
}

-- Of a whole call, and of the leader's scripts.
local STATUS = { DECIDED = 0, NO_HEAD = 1, FENCED = 2, STALE_TERM = 3, NOT_CONTINUATION = 4 }

-- The same as negative numbers, for scripts whose good answer is a count.
local REFUSED = { NO_HEAD = -1, FENCED = -2, STALE_TERM = -3, NOT_CONTINUATION = -4, PROOF_TOO_OLD = -5,
  FILTER_LOST = -6 }
