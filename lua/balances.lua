-- The balance hash of one key: available, reserved, sold, consumed, locked, seq, version, and frozen while it is held.
-- A part for other scripts. KEYS: none of its own. ARGV: none. Returns nothing; defines read_balance.

--- @include "integers"

local BALANCE_FIELDS = { 'available', 'reserved', 'sold', 'consumed', 'locked', 'seq', 'version' }

-- The seven numbers in the order of BALANCE_FIELDS, with `frozen` and `stored`, a copy to compare with when it is
-- written; otherwise nil and 'absent' or 'damaged'.
local function read_balance(name)
  local stored = redis.pcall('HMGET', name, 'available', 'reserved', 'sold', 'consumed', 'locked', 'seq', 'version',
    'frozen')
  if stored.err then return nil, 'damaged' end
  local missing = 0
  for i = 1, 7 do
    local text = stored[i]
    if text then
      local number = to_integer(text)
      if not number then return nil, 'damaged' end
      stored[i] = number
    else
      missing = missing + 1
    end
  end
  if missing > 0 then return nil, missing == 7 and not stored[8] and 'absent' or 'damaged' end
  return { stored[1], stored[2], stored[3], stored[4], stored[5], stored[6], stored[7],
    stored = stored, frozen = stored[8] }
end
