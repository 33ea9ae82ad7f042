#!lua flags=allow-oom
-- Draws an epoch: creates its head, fenced, unless that epoch or a later one was ever drawn in this Redis.
-- KEYS[1] head  KEYS[2] register
-- ARGV[1] epoch  ARGV[2] term  ARGV[3] digest before the first entry (genesis)  ARGV[4] grace in ms
-- Returns 0, or where it refuses the highest epoch known here: draw one above it.

--- @include "integers"

local epoch = to_integer(ARGV[1])
local drawn = to_integer(redis.call('GET', KEYS[2]) or '0')
if not drawn then return redis.error_reply('ERR the register holds no number') end
if drawn >= epoch then return drawn end
if redis.call('EXISTS', KEYS[1]) == 1 then return epoch end

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('SET', KEYS[2], ARGV[1])
redis.call('HSET', KEYS[1], 'fence', '1', 'term', ARGV[2], 'm', '0', 'digest', ARGV[3], 'genesis', ARGV[3],
  'confirmed_m', '0', 'evicted_m', '0', 'opened_ms', digits(now_ms), 'grace_ms', ARGV[4],
  'appended_bytes', '0', 'confirmed_bytes', '0')
return 0
