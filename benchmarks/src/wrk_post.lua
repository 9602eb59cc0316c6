-- wrk script: POST the files named in $BODY_FILES (one a line) in turn, with the headers in
-- $EXTRA_HEADERS ("Name: value" lines). Prints one line "JSON {...}", latencies in microseconds.
-- Unless $SAME_TEXTS is set, "No. 00000000" in a body becomes a running number: no two are alike.

local requests, turn = {}, 0
local same = os.getenv("SAME_TEXTS") ~= nil

function init()
  wrk.headers["Content-Type"] = "application/json"
  for name, value in string.gmatch(os.getenv("EXTRA_HEADERS") or "", "([^:\n]+): *([^\n]*)") do
    wrk.headers[name] = value
  end
  for path in string.gmatch(os.getenv("BODY_FILES"), "[^\n]+") do
    local file = assert(io.open(path, "rb"))
    local whole = wrk.format("POST", nil, nil, file:read("*a"))
    file:close()
    local at, to = string.find(whole, "No. 00000000", 1, true)
    if same or not at then
      requests[#requests + 1] = { whole = whole }
    elseif #whole < 50000 then
      requests[#requests + 1] = {
        before = string.sub(whole, 1, at - 1),
        after = string.sub(whole, to + 1),
      }
    else
      -- Putting 200 KB together for each request would make this the bottleneck.
      for number = 1, 150 do
        local text = string.format("No. %08d", number)
        requests[#requests + 1] = {
          whole = string.sub(whole, 1, at - 1) .. text .. string.sub(whole, to + 1),
        }
      end
    end
  end
end

function request()
  turn = turn + 1
  local request = requests[turn % #requests + 1]
  if request.whole then
    return request.whole
  end
  return request.before .. string.format("No. %08d", turn) .. request.after
end

function done(summary, latency, _)
  local e = summary.errors
  io.write(string.format(
    'JSON {"requests":%d,"duration_us":%d,"p50":%d,"p99":%d,"bad_status":%d,"broken":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.status, e.connect + e.read + e.write + e.timeout))
end
