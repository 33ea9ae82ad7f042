-- The filter of orders that MySQL may know and Redis does not: a Bloom filter in one string of fixed length. What it
-- does not have is new. Made by the leader, who reads MySQL's orders into it; evict.lua adds those that leave.
-- A part for other scripts, after head.lua. KEYS: none of its own. ARGV: none. Returns nothing; defines what follows.

-- As in `kernel/limits.py`; tests/lua compares them.
local FILTER_BYTES = 16777216
local FILTER_BITS = FILTER_BYTES * 8

-- Where a record's bits are: four numbers out of its name's sha1.
local function filter_places(member)
  local hex = redis.sha1hex(member)
  return tonumber(string.sub(hex, 1, 7), 16) % FILTER_BITS, tonumber(string.sub(hex, 8, 14), 16) % FILTER_BITS,
    tonumber(string.sub(hex, 15, 21), 16) % FILTER_BITS, tonumber(string.sub(hex, 22, 28), 16) % FILTER_BITS
end

-- A filter that is gone, or was cut, must never be read as one that is empty.
local function filter_is_whole(name) return redis.pcall('STRLEN', name) == FILTER_BYTES end

local function filter_add(name, member)
  local first, second, third, fourth = filter_places(member)
  redis.call('SETBIT', name, digits(first), 1)
  redis.call('SETBIT', name, digits(second), 1)
  redis.call('SETBIT', name, digits(third), 1)
  redis.call('SETBIT', name, digits(fourth), 1)
end

local function filter_may_have(name, member)
  local first, second, third, fourth = filter_places(member)
  return redis.call('GETBIT', name, digits(first)) == 1 and redis.call('GETBIT', name, digits(second)) == 1
    and redis.call('GETBIT', name, digits(third)) == 1 and redis.call('GETBIT', name, digits(fourth)) == 1
end
