-- Decisions about orders: RESERVE, EXTEND, CONFIRM, RELEASE, CONSUME, RETURN, READ, EXPIRE.
-- A part of decide.lua, after working_copy.lua. KEYS: none of its own. ARGV: none.
-- Returns nothing; defines decide_order and walked_lines.

local EXPIRED = 'expired'

-- Lines of the orders that this call has dealt with so far.
local walked_lines = 0

-- A hold is not due before the epoch has been open for the grace time: an outage of ours eats no buyer's time.
local grace_until_ms = head.opened_ms + head.grace_ms
local function effective_due_ms(order)
  local due_ms = order.h[H_DUE_MS]
  return due_ms > grace_until_ms and due_ms or grace_until_ms
end

local function order_view(order)
  return { effective_due_ms(order), order.h[H_BUYER_ID], order.lines }
end

-- An answer that tells how an order stands waits for the entry that brought it there.
local function order_answer(outcome, replay, order, detail)
  return { outcome, replay, order.h[H_M] > head.confirmed_m and 1 or 0, detail or order_view(order) }
end

-- 1 … count; most orders have one line, and the list is never altered.
local FIRST_ALONE = { 1 }
local function all_positions(count)
  if count == 1 then return FIRST_ALONE end
  local positions = {}
  for position = 1, count do positions[position] = position end
  return positions
end

local function lines_at(order, positions)
  if #positions == #order.lines then return order.lines end
  local lines = {}
  for i = 1, #positions do lines[i] = order.lines[positions[i]] end
  return lines
end

local function open_positions(order)
  local positions = {}
  for position = 1, #order.lines do
    if order.lines[position][LINE_STATE] == STATE.RESERVED then positions[#positions + 1] = position end
  end
  return positions
end

-- Moves lines unless something is in the way; returns outcome and detail of what is, or nil.
local function try_move(order, positions, kind, op, reason, actor)
  if overloaded(settle_max) then return OUTCOME.OVERLOADED end
  local outcome, detail = hindrance(kind, lines_at(order, positions))
  if outcome then return outcome, detail end
  move_lines(order, positions, kind, op, reason, actor)
  return nil
end

-- Releases what is past due, as a change of the clock's own, before anything else is decided about the order.
local function apply_expiry(order, op)
  if order.open == 0 or now_ms < effective_due_ms(order) then return nil end
  return try_move(order, open_positions(order), MOVE.RELEASE, op, EXPIRED, '')
end

-- RESERVE of an order that is known: only its own repeat may pass.
local function repeat_reserve(order, op)
  local buyer_id, known_buyer_id = op[BUYER_ID], order.h[H_BUYER_ID]
  local other_buyer = buyer_id ~= '' and known_buyer_id ~= '' and buyer_id ~= known_buyer_id
  if other_buyer or op[FINGERPRINT] ~= order.h[H_FINGERPRINT] then
    return order_answer(OUTCOME.ORDER_CONFLICT, 0, order)
  end
  if order.open == 0 then return order_answer(OUTCOME.ORDER_CLOSED, 0, order) end
  return order_answer(OUTCOME.DONE, 1, order)
end

local function quantities_out_of_range(lines)
  local keys
  for i = 1, #lines do
    local qty = lines[i][LINE_QTY]
    if qty < 1 or qty > QTY_MAX or qty % 1 ~= 0 then
      keys = keys or {}
      keys[#keys + 1] = lines[i][LINE_KEY]
    end
  end
  return keys
end

-- RESERVE of an order that is proven new: all lines or nothing.
local function new_reserve(op)
  if overloaded(reserve_max) then return answer(OUTCOME.OVERLOADED) end
  local lines = op[LINES]
  walked_lines = walked_lines + #lines
  local out_of_range = quantities_out_of_range(lines)
  if out_of_range then return answer(OUTCOME.QUANTITY_LIMIT, out_of_range) end
  local outcome, detail = hindrance(MOVE.RESERVE, lines)
  if outcome then return answer(outcome, detail) end

  local h = { op[FINGERPRINT], now_ms + op[TTL_MS], op[BUYER_ID], now_ms, #lines, 0 }
  local order = order_working_copy(op[MEMBER], h, lines, 0)
  orders[op[MEMBER]] = order
  move_lines(order, all_positions(#lines), MOVE.RESERVE, op, op[REASON], op[ACTOR])
  return order_answer(OUTCOME.DONE, 0, order)
end

-- Positions of the lines an operation is about, or nil and the keys that the order does not have.
local function named_positions(order, op)
  if #op[LINES] == 0 then return all_positions(#order.lines) end
  local named, positions = {}, {}
  for _, line in ipairs(op[LINES]) do named[line[LINE_KEY]] = true end
  for position = 1, #order.lines do
    local key = order.lines[position][LINE_KEY]
    if named[key] ~= nil then
      positions[#positions + 1] = position
      named[key] = false
    end
  end
  local unknown = {}
  for _, line in ipairs(op[LINES]) do
    if named[line[LINE_KEY]] then unknown[#unknown + 1] = line[LINE_KEY] end
  end
  if #unknown > 0 then return nil, unknown end
  return positions
end

-- Sorts lines by what the rule lets them do: those to move, those already there, those that stand in the way.
local function sort_positions(order, positions, rule)
  local moving, there, obstacles = {}, 0, {}
  for i = 1, #positions do
    local line = order.lines[positions[i]]
    local state = line[LINE_STATE]
    if state == rule.target then
      there = there + 1
    elseif state == rule.source then
      moving[#moving + 1] = positions[i]
    else
      obstacles[#obstacles + 1] = { line[LINE_KEY], state, line[LINE_REASON] }
    end
  end
  return moving, there, obstacles
end

-- The refusal where lines stand in the way of `kind`: a hold that the clock ended has a name of its own.
local function blocked(order, kind, obstacles)
  if kind == MOVE.CONFIRM or kind == MOVE.EXTEND then
    for i = 1, #obstacles do
      if obstacles[i][2] == STATE.RELEASED and obstacles[i][3] == EXPIRED then
        return order_answer(OUTCOME.HOLD_EXPIRED, 0, order)
      end
    end
  end
  return order_answer(OUTCOME.ILLEGAL_TRANSITION, 0, order, obstacles)
end

-- CONFIRM, RELEASE, CONSUME, RETURN.
local function move_order(order, op)
  local kind = op[KIND]
  local positions, unknown = named_positions(order, op)
  if not positions then return order_answer(OUTCOME.UNKNOWN_LINE, 0, order, unknown) end
  local moving, there, obstacles = sort_positions(order, positions, RULES[kind])
  -- To release an order means to release what is still held of it.
  local lenient = kind == MOVE.RELEASE and #op[LINES] == 0 and (#moving > 0 or there > 0)
  if #obstacles > 0 and not lenient then return blocked(order, kind, obstacles) end
  if #moving == 0 then return order_answer(OUTCOME.DONE, 1, order) end
  local outcome, detail = try_move(order, moving, kind, op, op[REASON], op[ACTOR])
  if outcome then return answer(outcome, detail) end
  return order_answer(OUTCOME.DONE, 0, order)
end

-- EXTEND: a later due time for all that is still held.
local function extend_order(order, op)
  local positions = open_positions(order)
  if #positions == 0 then
    local obstacles = {}
    for i, line in ipairs(order.lines) do obstacles[i] = { line[LINE_KEY], line[LINE_STATE], line[LINE_REASON] } end
    return blocked(order, MOVE.EXTEND, obstacles)
  end
  local h = order.h
  local due_ms, due_before_ms = now_ms + op[TTL_MS], h[H_DUE_MS]
  if due_ms <= effective_due_ms(order) then return order_answer(OUTCOME.DONE, 1, order) end
  h[H_DUE_MS] = due_ms
  local outcome, detail = try_move(order, positions, MOVE.EXTEND, op, op[REASON], op[ACTOR])
  if outcome then
    h[H_DUE_MS] = due_before_ms
    return answer(outcome, detail)
  end
  return order_answer(OUTCOME.DONE, 0, order)
end

local function decide_known(order, op)
  local kind, open_before = op[KIND], order.open
  local outcome, detail = apply_expiry(order, op)
  if outcome then
    -- READ tells what is there even where the expiry cannot be applied now, unless loading a key is all it takes.
    if kind ~= MOVE.READ or outcome == OUTCOME.NOT_LOADED then return answer(outcome, detail) end
  end
  if kind == MOVE.READ then return order_answer(OUTCOME.DONE, 0, order) end
  if kind == MOVE.EXPIRE then return order_answer(OUTCOME.DONE, order.open == open_before and 1 or 0, order) end
  if kind == MOVE.RESERVE then return repeat_reserve(order, op) end
  if kind == MOVE.EXTEND then return extend_order(order, op) end
  return move_order(order, op)
end

-- Whether the filter proves that nobody knows this order; nil until it was asked whether it can.
local filter_usable
local function is_new_by_filter(member)
  if filter_usable == nil then filter_usable = head.filter_complete and filter_is_whole(names.filter) end
  return filter_usable and not filter_may_have(names.filter, member)
end

-- What becomes of one operation on an order.
local function decide_order(op)
  local order = order_of(op[MEMBER])
  if order then
    if order.lost then return answer(OUTCOME.LOST, {}) end
    walked_lines = walked_lines + #order.lines
    return decide_known(order, op)
  end
  if op[PROOF] < head.evicted_m and not is_new_by_filter(op[MEMBER]) then return answer(OUTCOME.NEED_LOOKUP) end
  if op[KIND] == MOVE.RESERVE then return new_reserve(op) end
  return answer(OUTCOME.UNKNOWN_ORDER)
end
