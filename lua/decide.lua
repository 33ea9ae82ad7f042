-- Decides a batch of operations: reads, decides each in turn on a working copy, writes once. The body of reserve.lua
-- and settle.lua, which say before it which kinds they take (TAKES_STOCK).
-- KEYS[1] head  KEYS[2] log  KEYS[3] opened  KEYS[4] due  KEYS[5] settled  KEYS[6…] records and balances that are known
-- (declared for a cluster's routing; their names are built again from the shard's prefix)
-- ARGV[1] CallHeader, packed  ARGV[2] list of Operation, packed
-- Returns Reply, packed. status NO_HEAD, FENCED, STALE_TERM or NOT_CONTINUATION: nothing was read further, nothing
-- changed.

--- @include "moves"
--- @include "outcomes"
--- @include "operation"
--- @include "head"
--- @include "balances"
--- @include "records"
--- @include "filter"

-- As in `kernel/limits.py`; tests/lua compares them.
local QTY_MAX = 1000000
local QUANTITY_TOTAL_MAX = 4503599627370496
-- Lines of known orders that one call walks. What comes after them is SKIPPED, which the caller repeats: a script
-- blocks the whole server, and 512 confirms may be of 1,000 lines each.
local CALL_LINES_MAX = 4000

local head = read_head(KEYS[1])
if not head then return cmsgpack.pack({ STATUS.NO_HEAD }) end
if head.fence ~= 0 then return cmsgpack.pack({ STATUS.FENCED }) end
local epoch, term, reserve_max, settle_max
do
  local call_header = cmsgpack.unpack(ARGV[1])
  epoch, term, reserve_max, settle_max = call_header[1], call_header[2], call_header[3], call_header[4]
  if term ~= 0 and term ~= head.term then return cmsgpack.pack({ STATUS.STALE_TERM }) end
  -- What an older Redis refuses, somebody may have been promised.
  if not remembers(head, KEYS[2], call_header[5], call_header[6]) then
    return cmsgpack.pack({ STATUS.NOT_CONTINUATION })
  end
end

local operations = cmsgpack.unpack(ARGV[2])
local names = { head = KEYS[1], log = KEYS[2], opened = KEYS[3], due = KEYS[4], settled = KEYS[5] }
local prefix = string.sub(names.head, 1, -5)
names.filter = prefix .. 'filter'
local now_ms
do
  local time = redis.call('TIME')
  now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local unconfirmed_bytes = head.appended_bytes - head.confirmed_bytes
local function overloaded(bytes_max) return unconfirmed_bytes > bytes_max end
local function answer(outcome, detail) return { outcome, 0, 0, detail } end

--- @include "working_copy"
--- @include "orders"
--- @include "requests"

local DECIDERS = {
  [MOVE.RESERVE] = TAKES_STOCK and decide_order, [MOVE.ADJUST] = TAKES_STOCK and decide_request,
  [MOVE.LOCK] = TAKES_STOCK and decide_request, [MOVE.UNLOCK] = TAKES_STOCK and decide_request,
  [MOVE.EXTEND] = decide_order, [MOVE.CONFIRM] = decide_order, [MOVE.RELEASE] = decide_order,
  [MOVE.CONSUME] = decide_order, [MOVE.RETURN] = decide_order, [MOVE.READ] = decide_order, [MOVE.EXPIRE] = decide_order,
}

-- A caller's bug is an error of the call, found before anything is decided.
for i = 1, #operations do
  local op = operations[i]
  local kind, lines = op[KIND], #op[LINES]
  local decider = DECIDERS[kind]
  if not decider then return redis.error_reply('ERR this script does not take kind ' .. digits(kind)) end
  if lines == 0 and kind == MOVE.RESERVE or lines ~= 1 and decider == decide_request then
    return redis.error_reply('ERR wrong number of lines for kind ' .. digits(kind))
  end
  op[MEMBER] = (decider == decide_request and 'q:' or 'o:') .. op[TENANT] .. '/' .. op[REF]
end

-- The shard's own names must be what the write step takes them for: otherwise all is lost, and nothing is written.
local function is_type(name, wanted)
  local found = redis.call('TYPE', name).ok
  return found == wanted or found == 'none'
end
local sound = is_type(names.log, 'stream') and is_type(names.due, 'zset') and is_type(names.settled, 'zset')

local REPEATED_WITH_THE_REST = { [OUTCOME.NOT_LOADED] = true, [OUTCOME.NEED_LOOKUP] = true, [OUTCOME.SKIPPED] = true }
local results, blocked_groups = {}, {}
for i = 1, #operations do
  local op = operations[i]
  local result
  if not sound then
    result = answer(OUTCOME.LOST, {})
  elseif blocked_groups[op[GROUP]] or walked_lines >= CALL_LINES_MAX then
    result = answer(OUTCOME.SKIPPED)
  else
    result = DECIDERS[op[KIND]](op)
  end
  if REPEATED_WITH_THE_REST[result[1]] then blocked_groups[op[GROUP]] = true end
  results[i] = result
end

if sound then write_all() end
return cmsgpack.pack({ STATUS.DECIDED, head.m, head.digest, head.confirmed_m, now_ms, results,
  head.filter_complete and filter_usable ~= false and 1 or 0 })
