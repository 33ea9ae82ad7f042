#!lua
-- One step of filling the filter with the orders that MySQL knows: begin with an empty one, add some, say that all are
-- in it.
-- KEYS[1] head  KEYS[2] filter
-- ARGV[1] term  ARGV[2] 1 = begin anew  ARGV[3] list of records' names (`o:…`), packed  ARGV[4] 1 = all are in it now
-- Returns how many were added, -1 without a head, -3 under another term, -6 if the filter that was begun is lost.

--- @include "outcomes"
--- @include "head"
--- @include "filter"

local head = read_head(KEYS[1])
if not head then return REFUSED.NO_HEAD end
if head.term ~= to_integer(ARGV[1]) then return REFUSED.STALE_TERM end
if ARGV[2] == '1' then
  redis.call('HSET', KEYS[1], 'filter', '0')
  redis.call('UNLINK', KEYS[2])
  redis.call('SETBIT', KEYS[2], digits(FILTER_BITS - 1), 0)
elseif not filter_is_whole(KEYS[2]) then
  return REFUSED.FILTER_LOST
end
local members = cmsgpack.unpack(ARGV[3])
for i = 1, #members do filter_add(KEYS[2], members[i]) end
if ARGV[4] == '1' then redis.call('HSET', KEYS[1], 'filter', '1') end
return #members
