#!lua flags=allow-oom
-- Fences an epoch, so that nothing is decided in it any more, or opens it. A fence raises the term: a leader that
-- closes what it could not take over locks its predecessors out with it. To open it the head must have been taken over.
-- KEYS[1] head
-- ARGV[1] term of the leader  ARGV[2] 1 = fence, 0 = unfence
-- Returns 0, -1 without a head, -3 under a later term, and for opening under any other.

--- @include "outcomes"
--- @include "head"

local head = read_head(KEYS[1])
if not head then return REFUSED.NO_HEAD end
local term = to_integer(ARGV[1])
if ARGV[2] == '1' then
  if head.term > term then return REFUSED.STALE_TERM end
  redis.call('HSET', KEYS[1], 'fence', '1', 'term', ARGV[1])
else
  if head.term ~= term then return REFUSED.STALE_TERM end
  redis.call('HSET', KEYS[1], 'fence', '0')
end
return 0
