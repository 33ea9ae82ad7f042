#!lua flags=allow-oom
-- Marks keys as held, so that nothing changes them, or lifts the mark. Keys that are not loaded are passed over.
-- KEYS[1] head  KEYS[2…] balances
-- ARGV[1] term  ARGV[2] 1 = hold, 0 = lift
-- Returns how many of the keys are loaded, -1 without a head, -3 under another term.

--- @include "outcomes"
--- @include "head"
--- @include "balances"

local head = read_head(KEYS[1])
if not head then return REFUSED.NO_HEAD end
if head.term ~= to_integer(ARGV[1]) then return REFUSED.STALE_TERM end
local loaded = 0
for i = 2, #KEYS do
  if read_balance(KEYS[i]) then
    loaded = loaded + 1
    if ARGV[2] == '1' then redis.call('HSET', KEYS[i], 'frozen', '1') else redis.call('HDEL', KEYS[i], 'frozen') end
  end
end
return loaded
