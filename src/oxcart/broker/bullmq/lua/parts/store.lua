-- Writing a new job's hash.

-- `extras` is a flat list of further fields and values, or nil.
local function store_job(prefix, id, name, data, opts, timestamp, delay, priority, extras)
  call("HSET", prefix .. id, "name", name, "data", data, "opts", opts, "timestamp", timestamp,
    "delay", delay, "priority", priority, unpack(extras or {}))
  for i = 1, extras and #extras or 0, 2 do
    if extras[i] == "ox:lifetime" then
      call("ZADD", prefix .. "ox:expiring", timestamp + extras[i + 1], id)
    end
  end
  call("XADD", prefix .. "events", "*", "event", "added", "jobId", id, "name", name)
end
