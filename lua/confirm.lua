#!lua flags=allow-oom
-- Moves the confirmed mark to an entry that the broker has, and names it to the gateways that wait for it.
-- KEYS[1] head  KEYS[2] log
-- ARGV[1] term  ARGV[2] m  ARGV[3] digest of entry m  ARGV[4] channel  ARGV[5] what to publish there
-- Returns 1 moved and named, 0 the mark was there already, -1 without a head, -3 under another term, -4 if the log
-- holds another entry m or none.

--- @include "outcomes"
--- @include "head"

local head = read_head(KEYS[1])
if not head then return REFUSED.NO_HEAD end
if head.term ~= to_integer(ARGV[1]) then return REFUSED.STALE_TERM end
local m = to_integer(ARGV[2])
local digest, bytes = entry_of(KEYS[2], m)
if digest ~= ARGV[3] or not bytes then return REFUSED.NOT_CONTINUATION end
if m <= head.confirmed_m then return 0 end
redis.call('HSET', KEYS[1], 'confirmed_m', ARGV[2], 'confirmed_bytes', digits(bytes))
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 1
