-- What: load for wrk: POST /v1/operations, each request with new single-line orders.
-- Environment: AUTH bearer key, KEY_PREFIX, KEYS number of keys, RUN unique per run, OPERATIONS in a request.
-- Prints one JSON line at the end: as reserve.lua, and how many operations were answered 201 (accepted) or otherwise.
local operations = tonumber(os.getenv("OPERATIONS") or "100")
local auth = os.getenv("AUTH")
local prefix = os.getenv("KEY_PREFIX") or "k"
local keys = tonumber(os.getenv("KEYS") or "1000")
local run = os.getenv("RUN") or "run"
local count = 0
local threads = {}
local headers = { ["Content-Type"] = "application/json" }
if auth then
  headers["Authorization"] = "Bearer " .. auth
end

-- Globals, because wrk reads a thread's results by the names of its globals.
accepted = 0
not_accepted = 0

function setup(thread)
  thread:set("thread_no", #threads)
  table.insert(threads, thread)
end

function request()
  local parts = {}
  for n = 1, operations do
    count = count + 1
    parts[n] = string.format(
      '{"op":"reserve","order_id":"%s-%d-%d","lines":[{"inventory_key":"%s%d","qty":1}]}',
      run, thread_no, count, prefix, count % keys
    )
  end
  return wrk.format("POST", nil, headers, '{"operations":[' .. table.concat(parts, ",") .. "]}")
end

function response(status, _, body)
  if status == 200 then
    local _, found = string.gsub(body, '{"status":201,', "")
    accepted = accepted + found
    not_accepted = not_accepted + operations - found
  end
end

function done(summary, latency)
  local yes, no = 0, 0
  for _, thread in ipairs(threads) do
    yes = yes + thread:get("accepted")
    no = no + thread:get("not_accepted")
  end
  io.write(string.format(
    '\n{"requests":%d,"seconds":%.6f,"status_errors":%d,"socket_errors":%d,"p50_us":%d,"p99_us":%d,'
      .. '"accepted":%d,"not_accepted":%d}\n',
    summary.requests, summary.duration / 1e6, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(99), yes, no
  ))
end
