-- Whether the log continues what somebody knows of it, and how the head stands.
-- A part for other scripts. KEYS: none of its own. ARGV: none.
-- Returns nothing; defines read_continuation and describe_continuation.

--- @include "head"

-- The head, or nil, and DECIDED, NO_HEAD or NOT_CONTINUATION. `digest` is that of entry `m`, or the genesis for 0.
local function read_continuation(head_name, log_name, m, digest)
  local head = read_head(head_name)
  if not head then return nil, STATUS.NO_HEAD end
  local known
  if m == 0 then known = head.genesis elseif head.m >= m then known = entry_of(log_name, m) end
  return head, known == digest and STATUS.DECIDED or STATUS.NOT_CONTINUATION
end

local function describe_continuation(code, head)
  if not head then return cmsgpack.pack({ code }) end
  return cmsgpack.pack({ code, head.m, head.digest, head.confirmed_m, head.fence, head.opened_ms, head.evicted_m })
end
