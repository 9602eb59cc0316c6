-- wrk script: POST the files named in $BODY_FILES (one a line) in turn, with the headers in
-- $EXTRA_HEADERS ("Name: value" lines). Prints one line "JSON {...}", latencies in microseconds.

local requests, turn = {}, 0

function init()
  wrk.headers["Content-Type"] = "application/json"
  for name, value in string.gmatch(os.getenv("EXTRA_HEADERS") or "", "([^:\n]+): *([^\n]*)") do
    wrk.headers[name] = value
  end
  for path in string.gmatch(os.getenv("BODY_FILES"), "[^\n]+") do
    local file = assert(io.open(path, "rb"))
    requests[#requests + 1] = wrk.format("POST", nil, nil, file:read("*a"))
    file:close()
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary, latency, _)
  local e = summary.errors
  io.write(string.format(
    'JSON {"requests":%d,"duration_us":%d,"p50":%d,"p99":%d,"bad_status":%d,"broken":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write + e.timeout))
end
