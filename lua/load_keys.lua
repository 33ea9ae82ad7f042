#!lua
-- Brings keys into the epoch as MySQL has them, each only once: a late loader changes nothing.
-- KEYS[1] head  KEYS[2] opened  KEYS[3…] balances, one for each row
-- ARGV[1] list of [inventory_key, available, reserved, sold, consumed, locked, seq, version], packed
-- Returns how many were written, -1 without a head, -2 under a fence.

--- @include "outcomes"
--- @include "head"
--- @include "balances"

local head = read_head(KEYS[1])
if not head then return REFUSED.NO_HEAD end
if head.fence ~= 0 then return REFUSED.FENCED end

local written = 0
for i, row in ipairs(cmsgpack.unpack(ARGV[1])) do
  if redis.call('SADD', KEYS[2], row[1]) == 1 then
    local arguments = {}
    for field = 1, 7 do
      arguments[2 * field - 1], arguments[2 * field] = BALANCE_FIELDS[field], digits(row[field + 1])
    end
    redis.call('HSET', KEYS[2 + i], unpack(arguments))
    written = written + 1
  end
end
return written
