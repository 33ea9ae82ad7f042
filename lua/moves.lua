-- The table of moves: the same as `inventory/moves.py`, which tests/lua holds it to.
-- A part for other scripts. KEYS: none. ARGV: none. Returns nothing; defines MOVE, STATE and RULES.

local MOVE = {
  RESERVE = 1, EXTEND = 2, CONFIRM = 3, RELEASE = 4, CONSUME = 6, RETURN = 7,
  ADJUST = 8, LOCK = 9, UNLOCK = 10,
  READ = 20, EXPIRE = 21,
}

local STATE = { NONE = 0, RESERVED = 1, CONFIRMED = 2, RELEASED = 3, CONSUMED = 4, RETURNED = 5 }

-- signs: what one unit does to available, reserved, sold, consumed, locked.
-- taken_from: the one of the five that must hold what is moved; none for EXTEND (and ADJUST checks by itself).
local RULES = {
  [MOVE.RESERVE] = { source = STATE.NONE, target = STATE.RESERVED, signs = { -1, 1, 0, 0, 0 }, taken_from = 1 },
  [MOVE.EXTEND] = { source = STATE.RESERVED, target = STATE.RESERVED, signs = { 0, 0, 0, 0, 0 } },
  [MOVE.CONFIRM] = { source = STATE.RESERVED, target = STATE.CONFIRMED, signs = { 0, -1, 1, 0, 0 }, taken_from = 2 },
  [MOVE.RELEASE] = { source = STATE.RESERVED, target = STATE.RELEASED, signs = { 1, -1, 0, 0, 0 }, taken_from = 2 },
  [MOVE.CONSUME] = { source = STATE.CONFIRMED, target = STATE.CONSUMED, signs = { 0, 0, -1, 1, 0 }, taken_from = 3 },
  [MOVE.RETURN] = { source = STATE.CONFIRMED, target = STATE.RETURNED, signs = { 1, 0, -1, 0, 0 }, taken_from = 3 },
  [MOVE.ADJUST] = { source = STATE.NONE, target = STATE.NONE, signs = { 1, 0, 0, 0, 0 } },
  [MOVE.LOCK] = { source = STATE.NONE, target = STATE.NONE, signs = { -1, 0, 0, 0, 1 }, taken_from = 1 },
  [MOVE.UNLOCK] = { source = STATE.NONE, target = STATE.NONE, signs = { 1, 0, 0, 0, -1 }, taken_from = 5 },
}
