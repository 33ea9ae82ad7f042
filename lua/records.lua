-- The records of orders and of operators' changes: one hash each, field `h` and, for orders, a field for each line.
-- A part for other scripts. KEYS: none of its own. ARGV: none. Returns nothing; defines the functions below.

-- Order:   h = [fingerprint, due_ms, buyer_id, created_ms, line_count, m], l:<position> = [inventory_key, qty, state,
--          reason, epoch, seq], packed. m is the entry of the last change in this epoch, 0 = loaded, so MySQL has it.
-- Request: h = [fingerprint, kind, m, BalanceView as it was then], packed.

local pack, unpack_packed = cmsgpack.pack, cmsgpack.unpack
local type = type

-- What a packed text holds if it is an array of these types, otherwise nil.
local function unpack_array(text, types)
  if not text then return nil end
  local sound, value = pcall(unpack_packed, text)
  if not sound or type(value) ~= 'table' or #value ~= #types then return nil end
  for i = 1, #types do
    if type(value[i]) ~= types[i] then return nil end
  end
  return value
end

local H_FINGERPRINT, H_DUE_MS, H_BUYER_ID, H_CREATED_MS, H_LINE_COUNT, H_M = 1, 2, 3, 4, 5, 6
local ORDER_TYPES = { 'string', 'number', 'string', 'number', 'number', 'number' }
local LINE_TYPES = { 'string', 'number', 'number', 'string', 'number', 'number' }
local REQUEST_TYPES = { 'string', 'number', 'number', 'table' }

-- Field names of the first lines ready made; an order may have 1,000.
local LINE_FIELDS = {}
for position = 1, 8 do LINE_FIELDS[position] = string.format('l:%d', position) end
local function line_field(position) return LINE_FIELDS[position] or string.format('l:%d', position) end

-- Sends one command about one name with the first `count` of many arguments, in several pieces if need be: unpack() and
-- the C stack bound a single call. The pieces are even, so that pairs stay together.
local SEND_MAX = 1000
local function send(command, name, arguments, count)
  for first = 1, count, SEND_MAX do
    redis.call(command, name, unpack(arguments, first, math.min(first + SEND_MAX - 1, count)))
  end
end
