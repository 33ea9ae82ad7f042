#!lua flags=no-writes
-- Whether Redis' log still is what its leader took it for, for a reconnect and once a second.
-- KEYS[1] head  KEYS[2] log
-- ARGV[1] term  ARGV[2] m of an entry that the leader knows, 0 = none  ARGV[3] its digest, for 0 the genesis
-- Returns [code, head m, head digest, confirmed_m, fence, opened_ms, evicted_m], packed. code: 0 it is,
-- 1 no head, 3 the head has another term, 4 the log is no continuation; for 1 nothing follows the code.

--- @include "outcomes"
--- @include "continuation"

local head, code = read_continuation(KEYS[1], KEYS[2], to_integer(ARGV[2]), ARGV[3])
if head and head.term ~= to_integer(ARGV[1]) then code = STATUS.STALE_TERM end
return describe_continuation(code, head)
