#!lua flags=no-writes
-- Whether an entry is confirmed, for a gateway that may have missed its naming. Compares the digest, for after a fork
-- another entry bears the same number.
-- KEYS[1] head  KEYS[2] log
-- ARGV[1] m  ARGV[2] digest
-- Returns 1 confirmed, 0 pending, -1 another entry has this number, or none has it (any more).

--- @include "head"

local head = read_head(KEYS[1])
local m = to_integer(ARGV[1])
if not head or entry_of(KEYS[2], m) ~= ARGV[2] then return -1 end
return m <= head.confirmed_m and 1 or 0
