-- What: load for wrk: POST /v1/operations, each request with new single-line orders.
-- Environment: AUTH, KEY_PREFIX, KEYS, RUN as in reserve.lua; OPERATIONS in a request; CONFIRM=1 = every second operation
-- confirms the order that the one before it has reserved.
-- Prints one JSON line at the end: as reserve.lua; operations that were accepted and that were not, reserves among them.
local operations = tonumber(os.getenv("OPERATIONS") or "100")
local auth = os.getenv("AUTH")
local prefix = os.getenv("KEY_PREFIX") or "k"
local keys = tonumber(os.getenv("KEYS") or "1000")
local run = os.getenv("RUN") or "run"
local confirms = os.getenv("CONFIRM") == "1"
local count = 0
local threads = {}
local headers = { ["Content-Type"] = "application/json" }
if auth then
  headers["Authorization"] = "Bearer " .. auth
end

-- Globals, because wrk reads a thread's results by the names of its globals.
reserved = 0
confirmed = 0
not_accepted = 0

function setup(thread)
  thread:set("thread_no", #threads)
  table.insert(threads, thread)
end

function request()
  local parts = {}
  for n = 1, operations do
    if confirms and n % 2 == 0 then
      parts[n] = string.format('{"op":"confirm","order_id":"%s-%d-%d"}', run, thread_no, count)
    else
      count = count + 1
      parts[n] = string.format(
        '{"op":"reserve","order_id":"%s-%d-%d","lines":[{"inventory_key":"%s%d","qty":1}]}',
        run, thread_no, count, prefix, count % keys
      )
    end
  end
  return wrk.format("POST", nil, headers, '{"operations":[' .. table.concat(parts, ",") .. "]}")
end

-- Only answers of a new reserve have status 201. A replay would be no work done, and is not accepted here.
function response(status, _, body)
  if status ~= 200 then
    return
  end
  local _, new = string.gsub(body, '{"status":201,', "")
  local _, settled = string.gsub(body, '{"status":200,', "")
  reserved = reserved + new
  confirmed = confirmed + settled
  local wanted = confirms and math.floor(operations / 2) or 0
  not_accepted = not_accepted + math.abs(operations - wanted - new) + math.abs(wanted - settled)
end

function done(summary, latency)
  local new, settled, no = 0, 0, 0
  for _, thread in ipairs(threads) do
    new = new + thread:get("reserved")
    settled = settled + thread:get("confirmed")
    no = no + thread:get("not_accepted")
  end
  io.write(string.format(
    '\n{"requests":%d,"seconds":%.6f,"status_errors":%d,"socket_errors":%d,"p50_us":%d,"p99_us":%d,'
      .. '"accepted":%d,"reserved":%d,"not_accepted":%d}\n',
    summary.requests, summary.duration / 1e6, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(99), new + settled, new, no
  ))
end
