-- The head record of a shard's epoch. Without it, or with a damaged one, nothing is decided.
-- A part for other scripts. KEYS: none of its own. ARGV: none. Returns nothing; defines read_head, entry_of and
-- remembers.

--- @include "integers"

-- The head as a table, or nil where it is absent or damaged. Sizes are bytes, times ms.
local function read_head(name)
  local stored = redis.pcall('HMGET', name, 'fence', 'term', 'm', 'digest', 'confirmed_m', 'evicted_m', 'opened_ms',
    'grace_ms', 'appended_bytes', 'confirmed_bytes', 'genesis', 'filter')
  if stored.err or not stored[4] or not stored[11] then return nil end
  local head = {
    fence = to_integer(stored[1]), term = to_integer(stored[2]), m = to_integer(stored[3]), digest = stored[4],
    confirmed_m = to_integer(stored[5]), evicted_m = to_integer(stored[6]), opened_ms = to_integer(stored[7]),
    grace_ms = to_integer(stored[8]), appended_bytes = to_integer(stored[9]), confirmed_bytes = to_integer(stored[10]),
    genesis = stored[11], filter_complete = stored[12] == '1',
  }
  if head.fence and head.term and head.m and head.confirmed_m and head.evicted_m and head.opened_ms and head.grace_ms
    and head.appended_bytes and head.confirmed_bytes then
    return head
  end
  return nil
end

-- Entry `m` of the log as digest and bytes appended up to it; nil where the log does not hold it.
local function entry_of(log, m)
  local id = digits(m) .. '-0'
  local found = redis.pcall('XRANGE', log, id, id)
  if found.err or not found[1] then return nil end
  local digest, bytes
  local fields = found[1][2]
  for i = 1, #fields, 2 do
    if fields[i] == 'd' then digest = fields[i + 1] elseif fields[i] == 'b' then bytes = to_integer(fields[i + 1]) end
  end
  return digest, bytes
end

-- Whether the log holds an entry that the asker knows to be confirmed (m 0 = it knows none). A Redis that came back
-- with older data does not. The mark moves only onto entries of the published log, so that nearly always a number
-- suffices; an entry above the mark is never trimmed.
local function remembers(head, log, m, digest)
  return m <= head.confirmed_m or entry_of(log, m) == digest
end
