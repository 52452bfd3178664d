-- Writes a new job's hash.

-- `extras` is a flat list of further fields and values, or nil. No event carries tags and correlation. If a pipeline
-- reads the queue, they go into one record in `ox:attempts`, under the id of the event `added`.
local function store_job(prefix, id, name, data, opts, timestamp, delay, priority, extras)
  call("HSET", prefix .. id, "name", name, "data", data, "opts", opts, "timestamp", timestamp,
    "delay", delay, "priority", priority, unpack(extras or {}))
  local corr, tags
  for i = 1, extras and #extras or 0, 2 do
    if extras[i] == "ox:lifetime" then
      call("ZADD", prefix .. "ox:expiring", timestamp + extras[i + 1], id)
    elseif extras[i] == "ox:corr" then
      corr = extras[i + 1]
    elseif extras[i] == "ox:tags" then
      tags = extras[i + 1]
    end
  end
  local entry = call("XADD", prefix .. "events", "*", "event", "added", "jobId", id, "name", name)
  if (corr or tags) and is_attached(prefix) then
    local fields = { "event", "added", "jobId", id, "name", name, corr and "corr" or "tags", corr or tags }
    if corr and tags then
      fields[9], fields[10] = "tags", tags
    end
    redis.pcall("XADD", prefix .. "ox:attempts", "MAXLEN", "~", max_events(prefix), entry, unpack(fields))
  end
end
