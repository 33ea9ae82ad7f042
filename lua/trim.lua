#!lua flags=allow-oom
-- Drops old entries of the log. What is not confirmed stays, and so does the last confirmed entry, which the next
-- check of the chain may ask for.
-- KEYS[1] head  KEYS[2] log
-- ARGV[1] term  ARGV[2] first m to keep
-- Returns how many entries left, -1 without a head, -3 under another term.

--- @include "outcomes"
--- @include "head"

local head = read_head(KEYS[1])
if not head then return REFUSED.NO_HEAD end
if head.term ~= to_integer(ARGV[1]) then return REFUSED.STALE_TERM end
local keep_from_m = math.min(to_integer(ARGV[2]), head.confirmed_m)
return redis.call('XTRIM', KEYS[2], 'MINID', digits(keep_from_m) .. '-0')
