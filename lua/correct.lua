#!lua flags=allow-oom
-- Sets a key's quantities to what MySQL has, only if its seq and all five still are what was compared.
-- KEYS[1] head  KEYS[2] balance
-- ARGV[1] [seq, [available, reserved, sold, consumed, locked] compared, the same five new], packed
-- Returns 1 if they were set, 0 if anything differs or is absent.

--- @include "head"
--- @include "balances"

local asked = cmsgpack.unpack(ARGV[1])
local seq, compared, corrected = asked[1], asked[2], asked[3]
local balance = read_head(KEYS[1]) and read_balance(KEYS[2])
if not balance or balance[6] ~= seq then return 0 end
for i = 1, 5 do
  if balance[i] ~= compared[i] then return 0 end
end
local arguments = {}
for i = 1, 5 do arguments[2 * i - 1], arguments[2 * i] = BALANCE_FIELDS[i], digits(corrected[i]) end
redis.call('HSET', KEYS[2], unpack(arguments))
return 1
