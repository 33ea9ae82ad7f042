#!lua
-- Decides operations of every kind. Without allow-oom: a full server refuses it before it starts, as it may take stock.
-- KEYS[1] head  KEYS[2] log  KEYS[3] opened  KEYS[4] due  KEYS[5] settled  KEYS[6…] records and balances that are known
-- ARGV[1] CallHeader, packed  ARGV[2] list of Operation, packed
-- Returns Reply, packed; see decide.lua.

local TAKES_STOCK = true
--- @include "decide"
