-- Decisions about operators' changes of one key: ADJUST, LOCK, UNLOCK. The request number is their identity.
-- A part of decide.lua, after working_copy.lua. KEYS: none of its own. ARGV: none.
-- Returns nothing; defines decide_request.

local function request_answer(outcome, replay, request, detail)
  return { outcome, replay, request.m > head.confirmed_m and 1 or 0, detail }
end

-- Why a balance cannot take this change: outcome and detail, or nil.
local function request_hindrance(balance, op, qty)
  local kind = op[KIND]
  if balance.trouble then return balance.trouble, { balance.key } end
  if op[BASE_VERSION] ~= -1 and op[BASE_VERSION] ~= balance[VERSION] then
    return OUTCOME.VERSION_CONFLICT, { balance[VERSION] }
  end
  local least = kind == MOVE.ADJUST and -QUANTITY_TOTAL_MAX or 1
  if qty < least or qty > QUANTITY_TOTAL_MAX or qty % 1 ~= 0 then return OUTCOME.QUANTITY_LIMIT, { balance.key } end
  local taken_from = RULES[kind].taken_from or AVAILABLE
  local taken = kind == MOVE.ADJUST and -qty or qty
  if balance[taken_from] < taken then
    return OUTCOME.INSUFFICIENT_STOCK, { { balance.key, taken, balance[taken_from] } }
  end
  local total = 0
  for i = AVAILABLE, LOCKED do total = total + balance[i] end
  if kind == MOVE.ADJUST and total + qty > QUANTITY_TOTAL_MAX then return OUTCOME.QUANTITY_LIMIT, { balance.key } end
  return nil
end

-- What becomes of one operator's change.
local function decide_request(op)
  local request = request_of(op[MEMBER])
  if request then
    if request.lost then return answer(OUTCOME.LOST, {}) end
    if request.fingerprint ~= op[FINGERPRINT] or request.kind ~= op[KIND] then
      return request_answer(OUTCOME.REQUEST_CONFLICT, 0, request)
    end
    return request_answer(OUTCOME.DONE, 1, request, request.view)
  end
  if op[PROOF] < head.evicted_m then return answer(OUTCOME.NEED_LOOKUP) end
  if overloaded(reserve_max) then return answer(OUTCOME.OVERLOADED) end
  local line = op[LINES][1]
  local balance, qty = balance_of(line[LINE_KEY]), line[LINE_QTY]
  local outcome, detail = request_hindrance(balance, op, qty)
  if outcome then return answer(outcome, detail) end
  request = change_by_request(balance, op, qty)
  return request_answer(OUTCOME.DONE, 0, request, request.view)
end
