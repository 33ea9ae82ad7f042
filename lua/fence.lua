#!lua flags=allow-oom
-- Fences an epoch, so that nothing is decided in it any more, or opens it.
-- KEYS[1] head
-- ARGV[1] term of the leader  ARGV[2] 1 = fence, 0 = unfence
-- Returns 0, -1 without a head, -3 under another term.

--- @include "outcomes"
--- @include "head"

local head = read_head(KEYS[1])
if not head then return REFUSED.NO_HEAD end
if head.term ~= to_integer(ARGV[1]) then return REFUSED.STALE_TERM end
redis.call('HSET', KEYS[1], 'fence', ARGV[2] == '1' and '1' or '0')
return 0
