-- What: load for wrk: one new single-line order per request.
-- Environment: AUTH bearer key (optional), KEY_PREFIX, KEYS number of keys (1 = one hot key), RUN unique per run.
-- Prints one JSON line at the end: requests, errors by kind, seconds, latency percentiles in microseconds.
local count = 0
local auth = os.getenv("AUTH")
local prefix = os.getenv("KEY_PREFIX") or "k"
local keys = tonumber(os.getenv("KEYS") or "1000")
local run = os.getenv("RUN") or "run"
local threads = 0
local headers = { ["Content-Type"] = "application/json" }
if auth then
  headers["Authorization"] = "Bearer " .. auth
end

function setup(thread)
  thread:set("thread_no", threads)
  threads = threads + 1
end

function request()
  count = count + 1
  local body = string.format(
    '{"order_id":"%s-%d-%d","lines":[{"inventory_key":"%s%d","qty":1}]}',
    run, thread_no, count, prefix, count % keys
  )
  return wrk.format("POST", nil, headers, body)
end

function done(summary, latency)
  io.write(string.format(
    '\n{"requests":%d,"seconds":%.6f,"status_errors":%d,"socket_errors":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration / 1e6, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(99)
  ))
end
