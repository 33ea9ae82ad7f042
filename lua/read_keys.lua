#!lua flags=no-writes
-- Keys as they are in this epoch, under a fence too.
-- KEYS[1] head  KEYS[2] log  KEYS[3] opened  KEYS[4…] balances, one for each key of ARGV[1]
-- ARGV[1] list of inventory keys, packed  ARGV[2] m of an entry known to be confirmed, 0 = none  ARGV[3] its digest
-- Returns [code, rows], packed. code: 0, 1 without a head, 4 if the log does not hold that entry (then no rows).
-- A row: [state, inventory_key, available, reserved, sold, consumed, locked, seq, version, frozen]; state 0 = cold,
-- 1 = loaded, 2 = lost; zeros unless loaded.

--- @include "outcomes"
--- @include "head"
--- @include "balances"

local COLD, LOADED, LOST = 0, 1, 2
local head = read_head(KEYS[1])
if not head then return cmsgpack.pack({ STATUS.NO_HEAD, {} }) end
if not remembers(head, KEYS[2], to_integer(ARGV[2]), ARGV[3]) then
  return cmsgpack.pack({ STATUS.NOT_CONTINUATION, {} })
end
local rows = {}
for i, key in ipairs(cmsgpack.unpack(ARGV[1])) do
  local balance, state = read_balance(KEYS[3 + i])
  if balance then
    local frozen = balance.frozen and 1 or 0
    local available, reserved, sold, consumed, locked, seq, version = unpack(balance)
    rows[i] = { LOADED, key, available, reserved, sold, consumed, locked, seq, version, frozen }
  else
    local cold = state == 'absent' and redis.pcall('SISMEMBER', KEYS[3], key) == 0
    rows[i] = { cold and COLD or LOST, key, 0, 0, 0, 0, 0, 0, 0, 0 }
  end
end
return cmsgpack.pack({ STATUS.DECIDED, rows })
