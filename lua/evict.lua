#!lua flags=allow-oom
-- Lets settled records leave that MySQL has. Who asks for one later must bring a SELECT at least as new as evicted_m.
-- The orders among them are in the filter in the same step in which they leave.
-- KEYS[1] head  KEYS[2] settled (the records' names are built from the shard's prefix)
-- ARGV[1] term  ARGV[2] m applied in MySQL  ARGV[3] last change at or before this ms  ARGV[4] at most so many
-- Returns how many left, -1 without a head, -3 under another term.

--- @include "outcomes"
--- @include "head"
--- @include "records"
--- @include "filter"

local head = read_head(KEYS[1])
if not head then return REFUSED.NO_HEAD end
if head.term ~= to_integer(ARGV[1]) then return REFUSED.STALE_TERM end
local applied_m = to_integer(ARGV[2])
local prefix = string.sub(KEYS[1], 1, -5)

-- The entry of a record's last change; nil for a damaged one, which stays until somebody asks for it and finds it LOST.
local function last_m(member)
  local stored = redis.pcall('HGET', prefix .. member, 'h')
  if not stored or stored.err then return nil end
  if string.sub(member, 1, 2) == 'q:' then
    local h = unpack_array(stored, REQUEST_TYPES)
    return h and h[3]
  end
  local h = unpack_array(stored, ORDER_TYPES)
  return h and h[6]
end

local evicted, evicted_m = {}, head.evicted_m
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', ARGV[3], 'LIMIT', 0, ARGV[4])) do
  local m = last_m(member)
  if m and m <= applied_m then
    evicted[#evicted + 1] = member
    evicted_m = math.max(evicted_m, m)
  end
end
redis.call('HSET', KEYS[1], 'evicted_m', digits(evicted_m))
local filter = prefix .. 'filter'
if filter_is_whole(filter) then
  for _, member in ipairs(evicted) do
    if string.sub(member, 1, 2) == 'o:' then filter_add(filter, member) end
  end
elseif head.filter_complete then
  -- It was lost. Who fills it anew reads MySQL after this, which has all that leaves here.
  redis.call('HSET', KEYS[1], 'filter', '0')
end
for _, member in ipairs(evicted) do redis.call('UNLINK', prefix .. member) end
send('ZREM', KEYS[2], evicted, #evicted)
return #evicted
