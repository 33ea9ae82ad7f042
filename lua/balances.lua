-- The balance hash of one key: available, reserved, sold, consumed, locked, seq, version, and frozen while it is held.
-- A part for other scripts. KEYS: none of its own. ARGV: none. Returns nothing; defines read_balance.

--- @include "integers"

local BALANCE_FIELDS = { 'available', 'reserved', 'sold', 'consumed', 'locked', 'seq', 'version' }

-- Unlike to_integer it lets through whatever Lua reads as a whole number (1e3): it is called seven times a balance, and
-- whatever is not digits is only ever another spelling of a number that was put there by hand.
local function whole_number(text)
  local number = tonumber(text)
  if number and number >= 0 and number <= EXACT_MAX and number % 1 == 0 then return number end
  return nil
end

-- Numbers [1..7] in the order of BALANCE_FIELDS and the names beside them, all in one constructor: a table that grows
-- field by field is laid out anew several times. Otherwise nil and 'absent' or 'damaged'.
-- stored: the numbers as Redis has them; frozen: whether it is held; the rest is for the working copy.
local function read_balance(name, key)
  local stored = redis.pcall('HMGET', name, 'available', 'reserved', 'sold', 'consumed', 'locked', 'seq', 'version',
    'frozen')
  if stored.err then return nil, 'damaged' end
  local missing = 0
  for i = 1, 7 do
    local text = stored[i]
    if text then
      local number = whole_number(text)
      if not number then return nil, 'damaged' end
      stored[i] = number
    else
      missing = missing + 1
    end
  end
  if missing > 0 then return nil, missing == 7 and not stored[8] and 'absent' or 'damaged' end
  return { stored[1], stored[2], stored[3], stored[4], stored[5], stored[6], stored[7],
    stored = stored, frozen = stored[8], key = key, name = name, trouble = false, changed = false,
    check_no = 0, asked = 0 }
end
