-- What: open-loop load for wrk: new single-line orders at a given rate, however slowly they are answered.
-- Each order has a time at which it is to be sent, drawn beforehand (exponential gaps, as independent callers make
-- them). Its latency counts from that time, not from when a connection was free for it: what waits behind a slow
-- answer is not left out (coordinated omission). The time travels as the request's id, which the gateway echoes.
-- Environment: AUTH, KEY_PREFIX, KEYS, RUN as in reserve.lua; RATE orders per second. For one thread.
-- Prints one JSON line at the end: as reserve.lua; accepted and not_accepted answers; latencies from the intended time
-- (corrected_…_us), how late requests were sent (late_…_us), orders that had no answer yet at the end, and by how many
-- seconds the last order was sent behind its time.
local ffi = require("ffi")
ffi.cdef([[
  typedef struct { long seconds; long nanoseconds; } stockgate_timespec;
  int clock_gettime(int clock, stockgate_timespec *now);
]])
local CLOCK_MONOTONIC = 1
local BUCKET = math.log(1.01)
local auth = os.getenv("AUTH")
local prefix = os.getenv("KEY_PREFIX") or "k"
local keys = tonumber(os.getenv("KEYS") or "1000")
local run = os.getenv("RUN") or "run"
local rate_per_us = tonumber(os.getenv("RATE") or "100") / 1e6
local timespec = ffi.new("stockgate_timespec")
local headers = { ["Content-Type"] = "application/json" }
if auth then
  headers["Authorization"] = "Bearer " .. auth
end
local count = 0
local drawn_us
local waiting, first, last = {}, 1, 0
local the_thread

-- Globals, because wrk reads a thread's results by the names of its globals.
latencies = {}
lates = {}
under_way = {}
accepted = 0
not_accepted = 0
behind_us = 0

local function now_us()
  ffi.C.clock_gettime(CLOCK_MONOTONIC, timespec)
  return tonumber(timespec.seconds) * 1e6 + tonumber(timespec.nanoseconds) / 1e3
end

local function note(histogram, us)
  local bucket = us <= 1 and 0 or math.ceil(math.log(us) / BUCKET)
  histogram[bucket] = (histogram[bucket] or 0) + 1
end

function setup(thread)
  the_thread = thread
end

-- wrk asks before each request how many ms its connection shall wait; timers fire in the order of their times.
function delay()
  local now = now_us()
  drawn_us = (drawn_us or now) - math.log(1 - math.random()) / rate_per_us
  last = last + 1
  waiting[last] = drawn_us
  return math.max(0, math.ceil((drawn_us - now) / 1000))
end

function request()
  local intended_us = waiting[first]
  if not intended_us then
    -- wrk looks at one request before it begins, and sends it nowhere.
    return wrk.format("POST", nil, headers, "{}")
  end
  waiting[first] = nil
  first = first + 1
  behind_us = math.max(0, now_us() - intended_us)
  note(lates, behind_us)
  count = count + 1
  local id = tostring(count)
  under_way[id] = intended_us
  headers["X-Request-Id"] = id
  return wrk.format("POST", nil, headers, string.format(
    '{"order_id":"%s-%d","lines":[{"inventory_key":"%s%d","qty":1}]}', run, count, prefix, count % keys
  ))
end

function response(status, answered)
  local id = answered["x-request-id"] or answered["X-Request-Id"]
  if status == 201 and id and under_way[id] then
    note(latencies, now_us() - under_way[id])
    under_way[id] = nil
    accepted = accepted + 1
  else
    not_accepted = not_accepted + 1
  end
end

local function percentiles(name, histogram)
  local buckets, total = {}, 0
  for bucket, times in pairs(histogram) do
    table.insert(buckets, bucket)
    total = total + times
  end
  table.sort(buckets)
  local out = {}
  for _, wanted in ipairs({ 50, 90, 99, 99.9, 100 }) do
    local seen, found = 0, 0
    for _, bucket in ipairs(buckets) do
      seen, found = seen + histogram[bucket], bucket
      if seen >= total * wanted / 100 then
        break
      end
    end
    local label = string.gsub(tostring(wanted), "%.", "_")
    table.insert(out, string.format('"%s_p%s_us":%.0f', name, label, math.exp(found * BUCKET)))
  end
  return table.concat(out, ",")
end

function done(summary, latency)
  local histogram, unanswered, now = the_thread:get("latencies"), 0, now_us()
  for _, intended_us in pairs(the_thread:get("under_way")) do
    -- It has waited this long at least.
    note(histogram, now - intended_us)
    unanswered = unanswered + 1
  end
  io.write(string.format(
    '\n{"requests":%d,"seconds":%.6f,"status_errors":%d,"socket_errors":%d,"p50_us":%d,"p99_us":%d,'
      .. '"accepted":%d,"not_accepted":%d,"unanswered":%d,"behind_s":%.3f,%s,%s}\n',
    summary.requests, summary.duration / 1e6, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(99), the_thread:get("accepted"), the_thread:get("not_accepted"),
    unanswered, the_thread:get("behind_us") / 1e6, percentiles("corrected", histogram),
    percentiles("late", the_thread:get("lates"))
  ))
end
