-- Whole numbers in and out of Redis. Lua keeps doubles: exact to 2^53 - 1, and tostring() and .. print 14 digits only.
-- A part for other scripts. KEYS: none. ARGV: none. Returns nothing; defines to_integer and digits.

local EXACT_MAX = 9007199254740991

-- The number that a text of digits names; nil for anything else (tonumber alone takes '1e3', '0x10' and 'inf').
local find, tonumber = string.find, tonumber
local function to_integer(text)
  if not text or not find(text, '^%d+$') then return nil end
  local number = tonumber(text)
  if number > EXACT_MAX then return nil end
  return number
end

local format = string.format
local function digits(number) return format('%d', number) end
