#!lua
-- Brings records into the epoch as MySQL has them, where Redis has none and the SELECT is not older than what left.
-- KEYS[1] head  KEYS[2] due  KEYS[3] settled  KEYS[4…] records: the orders, then the requests, in the order of ARGV[1]
-- ARGV[1] [proof_m, orders [[tenant, order_id, fingerprint, due_ms, buyer_id, created_ms, line_count,
--   lines [[inventory_key, qty, state, reason, epoch, seq], …]], …], requests [[tenant, request_no, fingerprint, kind,
--   BalanceView], …]], packed; proof_m is the shard row's applied_m in the same SELECT
-- Returns how many were written, -1 without a head, -2 under a fence, -5 if the proof is too old.

--- @include "moves"
--- @include "outcomes"
--- @include "operation"
--- @include "head"
--- @include "records"

local head = read_head(KEYS[1])
if not head then return REFUSED.NO_HEAD end
if head.fence ~= 0 then return REFUSED.FENCED end
local asked = cmsgpack.unpack(ARGV[1])
local proof_m, orders, requests = asked[1], asked[2], asked[3]
if proof_m < head.evicted_m then return REFUSED.PROOF_TOO_OLD end

local time = redis.call('TIME')
local now = digits(tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local written = 0

local function load_order(name, order)
  local lines, open = order[8], false
  local arguments = { 'h', pack({ order[3], order[4], order[5], order[6], order[7], 0 }) }
  for position, line in ipairs(lines) do
    arguments[2 * position + 1], arguments[2 * position + 2] = line_field(position), pack(line)
    open = open or line[LINE_STATE] == STATE.RESERVED
  end
  send('HSET', name, arguments, #arguments)
  local member = 'o:' .. order[1] .. '/' .. order[2]
  if open then redis.call('ZADD', KEYS[2], digits(order[4]), member) else redis.call('ZADD', KEYS[3], now, member) end
end

local function load_request(name, request)
  redis.call('HSET', name, 'h', pack({ request[3], request[4], 0, request[5] }))
  redis.call('ZADD', KEYS[3], now, 'q:' .. request[1] .. '/' .. request[2])
end

for i, order in ipairs(orders) do
  local name = KEYS[3 + i]
  if redis.call('EXISTS', name) == 0 then
    load_order(name, order)
    written = written + 1
  end
end
for i, request in ipairs(requests) do
  local name = KEYS[3 + #orders + i]
  if redis.call('EXISTS', name) == 0 then
    load_request(name, request)
    written = written + 1
  end
end
return written
