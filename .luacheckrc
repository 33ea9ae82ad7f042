-- Redis embeds Lua 5.1 and gives scripts these names.
std = "lua51"
read_globals = {
  "KEYS", "ARGV",
  redis = { fields = { "call", "pcall", "error_reply", "status_reply", "sha1hex", "log", "setresp",
    "LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING" } },
  "cjson", "cmsgpack", "struct", "bit",
}
max_line_length = 120
-- Parts of a script share locals through `--- @include`, so file by file they look undefined or unused. tests/lua runs
-- luacheck over the scripts as Redis gets them.
files["lua"] = { ignore = { "112", "113", "122", "211", "231" } }
