-- The balance hash of one key: available, reserved, sold, consumed, locked, seq, version, and frozen while it is held.
-- A part for other scripts. KEYS: none of its own. ARGV: none. Returns nothing; defines read_balance.

--- @include "integers"

local BALANCE_FIELDS = { 'available', 'reserved', 'sold', 'consumed', 'locked', 'seq', 'version' }

-- Turns seven texts into numbers in place; raises on what is no number, answers false on one that is not whole or out
-- of range. Unlike to_integer it takes every spelling that Lua reads (1e3): reading balances is what scripts do most,
-- and adding 0 is the quickest way from text to number.
local function to_numbers(stored)
  for i = 1, 7 do
    local number = stored[i] + 0
    if not (number >= 0 and number <= EXACT_MAX and number % 1 == 0) then return false end
    stored[i] = number
  end
  return true
end

local function is_absent(stored)
  for i = 1, 8 do
    if stored[i] then return false end
  end
  return true
end

-- Numbers [1..7] in the order of BALANCE_FIELDS and the names beside them, all in one constructor: a table that grows
-- field by field is laid out anew several times. Otherwise nil and 'absent' or 'damaged'.
-- stored: the numbers as Redis has them; frozen: whether it is held; the rest is for the working copy.
local function read_balance(name, key)
  local stored = redis.pcall('HMGET', name, 'available', 'reserved', 'sold', 'consumed', 'locked', 'seq', 'version',
    'frozen')
  local numeric, whole = pcall(to_numbers, stored)
  if not (numeric and whole) then return nil, not stored.err and is_absent(stored) and 'absent' or 'damaged' end
  return { stored[1], stored[2], stored[3], stored[4], stored[5], stored[6], stored[7],
    stored = stored, frozen = stored[8], key = key, name = name, trouble = false, changed = false,
    check_no = 0, asked = 0 }
end
