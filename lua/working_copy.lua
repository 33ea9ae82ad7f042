-- What a deciding call reads, changes in memory and writes once at its end: nothing is rolled back in Redis, so nothing
-- is written before everything is decided, and a refused operation leaves no trace here.
-- A part of decide.lua, which sets names, head, epoch, prefix and now_ms. KEYS: none of its own. ARGV: none.
-- Returns nothing; defines balance_of, order_of, request_of, hindrance, move_lines, change_by_request and write_all.

local balances, orders, requests = {}, {}, {}
local changed_balances, changed_orders, new_requests, changes = {}, {}, {}, {}
local next_m = head.m + 1

-- read ----------------------------------------------------------------------------------------------------

-- A key's working copy, see read_balance. `trouble` is the outcome that forbids to change it, if any.
local function balance_of(key)
  local balance = balances[key]
  if balance then return balance end
  local state
  balance, state = read_balance(prefix .. 'k:' .. key, key)
  if balance then
    if balance.frozen then balance.trouble = OUTCOME.KEY_FROZEN end
  elseif state == 'absent' and redis.pcall('SISMEMBER', names.opened, key) == 0 then
    balance = { key = key, trouble = OUTCOME.NOT_LOADED }
  else
    balance = { key = key, trouble = OUTCOME.LOST }
  end
  balances[key] = balance
  return balance
end

local LOST_RECORD = { lost = true }

-- h: the record's header, see records.lua. `lines` and the lines in it are replaced, never altered, so that results can
-- share them. touched: false, ALL, or the set of the positions to be written.
local ALL = true
local function order_working_copy(member, h, lines, open)
  return { member = member, h = h, lines = lines, open = open, was_open = open > 0, touched = false }
end

local function decode_order(member, stored)
  local fields = {}
  for i = 1, #stored, 2 do fields[stored[i]] = stored[i + 1] end
  local h = unpack_array(fields.h, ORDER_TYPES)
  if not h then return LOST_RECORD end
  local lines, open = {}, 0
  for position = 1, h[H_LINE_COUNT] do
    local line = unpack_array(fields[line_field(position)], LINE_TYPES)
    if not line then return LOST_RECORD end
    if line[LINE_STATE] == STATE.RESERVED then open = open + 1 end
    lines[position] = line
  end
  return order_working_copy(member, h, lines, open)
end

-- An order's working copy, nil where Redis has none.
local function order_of(member)
  local order = orders[member]
  if order == nil then
    local stored = redis.pcall('HGETALL', prefix .. member)
    if stored.err then
      order = LOST_RECORD
    elseif #stored == 0 then
      order = false
    else
      order = decode_order(member, stored)
    end
    orders[member] = order
  end
  return order or nil
end

-- The record of an operator's change, nil where Redis has none.
local function request_of(member)
  local request = requests[member]
  if request == nil then
    local stored = redis.pcall('HGET', prefix .. member, 'h')
    if not stored then
      -- A hash without `h` is no request of ours but no proof of absence either.
      request = redis.pcall('EXISTS', prefix .. member) ~= 0 and LOST_RECORD
    else
      local h = not stored.err and unpack_array(stored, REQUEST_TYPES)
      request = h and { fingerprint = h[1], kind = h[2], m = h[3], view = h[4] } or LOST_RECORD
    end
    requests[member] = request
  end
  return request or nil
end

-- check ----------------------------------------------------------------------------------------------------

local check_no = 0

-- How much one check has asked of a balance so far: a key may stand in several lines.
local function asked_of(balance, qty)
  if balance.check_no ~= check_no then balance.check_no, balance.asked = check_no, 0 end
  local asked = balance.asked + qty
  balance.asked = asked
  return asked
end

-- Why these lines ([inventory_key, qty, …]) cannot make this move together: outcome and detail, or nil.
-- To hold less than was moved there before is damage, not shortage: only RESERVE can come short.
local function hindrance(kind, lines)
  local taken_from = RULES[kind].taken_from
  local worst, keys, short, count = 0, nil, nil, #lines
  check_no = check_no + 1
  for i = 1, count do
    local line = lines[i]
    local balance = balance_of(line[LINE_KEY])
    local trouble = balance.trouble
    if taken_from and not trouble then
      local asked = count > 1 and asked_of(balance, line[LINE_QTY]) or line[LINE_QTY]
      if asked > balance[taken_from] then
        if kind == MOVE.RESERVE then
          short = short or {}
          short[#short + 1] = { balance.key, asked, balance[taken_from] }
        else
          trouble = OUTCOME.LOST
        end
      end
    end
    if trouble and trouble >= worst then
      if trouble > worst then worst, keys = trouble, {} end
      keys[#keys + 1] = balance.key
    end
  end
  if worst > 0 then return worst, keys end
  if short then return OUTCOME.INSUFFICIENT_STOCK, short end
  return nil
end

-- change ----------------------------------------------------------------------------------------------------

-- Moves `qty` units of a balance by a rule's signs and returns the event of it.
local function change_balance(balance, signs, qty, state, position)
  if not balance.changed then
    balance.changed = true
    changed_balances[#changed_balances + 1] = balance
  end
  local d_available, d_reserved, d_sold = signs[AVAILABLE] * qty, signs[RESERVED] * qty, signs[SOLD] * qty
  local d_consumed, d_locked = signs[CONSUMED] * qty, signs[LOCKED] * qty
  local available, reserved, sold = balance[AVAILABLE] + d_available, balance[RESERVED] + d_reserved,
    balance[SOLD] + d_sold
  local consumed, locked, seq = balance[CONSUMED] + d_consumed, balance[LOCKED] + d_locked, balance[SEQ] + 1
  balance[AVAILABLE], balance[RESERVED], balance[SOLD] = available, reserved, sold
  balance[CONSUMED], balance[LOCKED], balance[SEQ] = consumed, locked, seq
  return { balance.key, seq, balance[VERSION], state, qty, position, d_available, d_reserved, d_sold, d_consumed,
    d_locked, available, reserved, sold, consumed, locked }
end

local function touch(order, positions)
  if not order.touched then changed_orders[#changed_orders + 1] = order end
  if #positions == #order.lines then
    order.touched = ALL
  elseif order.touched ~= ALL then
    order.touched = order.touched or {}
    for i = 1, #positions do order.touched[positions[i]] = true end
  end
end

-- Moves the lines at these positions and records one change. The caller has heard of no hindrance.
local function move_lines(order, positions, kind, op, reason, actor)
  touch(order, positions)
  local rule, count, h, before, events = RULES[kind], #positions, order.h, order.lines, {}
  local signs, target = rule.signs, rule.target
  local lines = count < #before and { unpack(before) } or {}
  for i = 1, count do
    local position = positions[i]
    local line = before[position]
    local key, qty = line[LINE_KEY], line[LINE_QTY]
    local balance = balances[key]
    events[i] = change_balance(balance, signs, qty, target, position)
    lines[position] = { key, qty, target, reason, epoch, balance[SEQ] }
  end
  if rule.source == STATE.RESERVED then order.open = order.open - count end
  if target == STATE.RESERVED then order.open = order.open + count end
  order.lines, h[H_M] = lines, next_m
  changes[#changes + 1] = { kind, op[TENANT], op[REF], now_ms, op[TRACE_ID], actor, reason, h[H_FINGERPRINT],
    h[H_DUE_MS], h[H_BUYER_ID], h[H_LINE_COUNT], order.open, h[H_CREATED_MS], events }
end

-- An operator's change of one balance: version and seq move, the request is remembered with what came of it.
local function change_by_request(balance, op, qty)
  balance[VERSION] = balance[VERSION] + 1
  local event = change_balance(balance, RULES[op[KIND]].signs, qty, STATE.NONE, 0)
  changes[#changes + 1] = { op[KIND], op[TENANT], op[REF], now_ms, op[TRACE_ID], op[ACTOR], op[REASON],
    op[FINGERPRINT], 0, '', 0, 0, 0, { event } }
  local request = { member = op[MEMBER], fingerprint = op[FINGERPRINT], kind = op[KIND], m = next_m,
    view = { balance.key, unpack(balance, AVAILABLE, VERSION) } }
  requests[op[MEMBER]] = request
  new_requests[#new_requests + 1] = request
  return request
end

-- write ----------------------------------------------------------------------------------------------------

-- Arguments are gathered in one table for all commands: 256 that grow would cost more than the commands.
local arguments = {}

local function write_balance(balance)
  local stored, count = balance.stored, 0
  for i = AVAILABLE, VERSION do
    local number = balance[i]
    if number ~= stored[i] then
      arguments[count + 1], arguments[count + 2] = BALANCE_FIELDS[i], format('%d', number)
      count = count + 2
    end
  end
  redis.call('HSET', balance.name, unpack(arguments, 1, count))
end

local function write_order(order)
  local lines = order.lines
  arguments[1] = 'h'
  arguments[2] = pack(order.h)
  local count = 2
  for position = 1, #lines do
    if order.touched == ALL or order.touched[position] then
      arguments[count + 1], arguments[count + 2] = line_field(position), pack(lines[position])
      count = count + 2
    end
  end
  send('HSET', prefix .. order.member, arguments, count)
end

-- One entry for the whole call, then what it says. XADD comes first: it alone could fail, on a log that is damaged.
local function write_all()
  if #changes == 0 then return end
  local payload = pack(changes)
  local digest = redis.sha1hex(head.digest .. payload)
  local appended_bytes = head.appended_bytes + #payload
  redis.call('XADD', names.log, digits(next_m) .. '-0', 'd', digest, 'e', payload, 'b', digits(appended_bytes))
  redis.call('HSET', names.head, 'm', digits(next_m), 'digest', digest, 'appended_bytes', digits(appended_bytes))
  head.m, head.digest, head.appended_bytes = next_m, digest, appended_bytes

  for i = 1, #changed_balances do write_balance(changed_balances[i]) end
  local due, ended, settled, now = {}, {}, {}, digits(now_ms)
  for i = 1, #changed_orders do
    local order = changed_orders[i]
    write_order(order)
    if order.open > 0 then
      due[#due + 1], due[#due + 2] = digits(order.h[H_DUE_MS]), order.member
    else
      settled[#settled + 1], settled[#settled + 2] = now, order.member
      if order.was_open then ended[#ended + 1] = order.member end
    end
  end
  for i = 1, #new_requests do
    local request = new_requests[i]
    redis.call('HSET', prefix .. request.member, 'h',
      pack({ request.fingerprint, request.kind, request.m, request.view }))
    settled[#settled + 1], settled[#settled + 2] = now, request.member
  end
  send('ZADD', names.due, due, #due)
  send('ZREM', names.due, ended, #ended)
  send('ZADD', names.settled, settled, #settled)
end
