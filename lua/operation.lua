-- The places of an operation's and a line's fields: arrays on the wire, as in `inventory/operations.py`.
-- A part for other scripts. KEYS: none. ARGV: none. Returns nothing; defines the names below.

local KIND, GROUP, TENANT, REF, PROOF, TRACE_ID, ACTOR, REASON = 1, 2, 3, 4, 5, 6, 7, 8
local FINGERPRINT, TTL_MS, BUYER_ID, BASE_VERSION, LINES = 9, 10, 11, 12, 13
-- Set by decide.lua: the record's name after the shard's prefix, which is also its name in the sorted sets.
local MEMBER = 14

-- Of a line asked for and of an order's line.
local LINE_KEY, LINE_QTY, LINE_STATE, LINE_REASON = 1, 2, 3, 4

-- Of a balance, the first five are the quantities of `inventory.moves.Quantities`.
local AVAILABLE, RESERVED, SOLD, CONSUMED, LOCKED, SEQ, VERSION = 1, 2, 3, 4, 5, 6, 7
