#!lua flags=allow-oom
-- Decides operations that give stock back or finish with it, on a full server too; an error for RESERVE, ADJUST, LOCK
-- and UNLOCK, before anything is decided.
-- KEYS[1] head  KEYS[2] log  KEYS[3] opened  KEYS[4] due  KEYS[5] settled  KEYS[6…] records and balances that are known
-- ARGV[1] CallHeader, packed  ARGV[2] list of Operation, packed
-- Returns Reply, packed; see decide.lua.

local TAKES_STOCK = false
--- @include "decide"
