#!lua flags=allow-oom
-- A new leader takes an epoch over if Redis' log holds the entry up to which MySQL has applied it.
-- KEYS[1] head  KEYS[2] log
-- ARGV[1] term  ARGV[2] m applied in MySQL, 0 = none  ARGV[3] its digest, for 0 the genesis
-- Returns [code, head m, head digest, confirmed_m, fence, opened_ms, evicted_m], packed. code: 0 taken over,
-- 1 no head, 3 a later term was here, 4 the log is no continuation; for 1 nothing follows the code.

--- @include "outcomes"
--- @include "continuation"

local head, code = read_continuation(KEYS[1], KEYS[2], to_integer(ARGV[2]), ARGV[3])
if head and head.term > to_integer(ARGV[1]) then code = STATUS.STALE_TERM end
if code == STATUS.DECIDED then redis.call('HSET', KEYS[1], 'term', ARGV[1]) end
return describe_continuation(code, head)
