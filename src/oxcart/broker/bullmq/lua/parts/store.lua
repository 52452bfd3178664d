-- Writes a new job's hash.

local LABELS = { ["ox:corr"] = "corr", ["ox:tags"] = "tags", ["ox:limit"] = "key" }

-- `extras` is a flat list of further fields and values, or nil. No event carries tags, correlation and limit key. If a
-- pipeline reads the queue, they go into one record in `ox:attempts`, under the id of the event `added`.
local function store_job(prefix, id, name, data, opts, timestamp, delay, priority, extras)
  if not extras then
    call("HSET", prefix .. id, "name", name, "data", data, "opts", opts, "timestamp", timestamp,
      "delay", delay, "priority", priority)
    call("XADD", prefix .. "events", "*", "event", "added", "jobId", id, "name", name)
    return
  end
  call("HSET", prefix .. id, "name", name, "data", data, "opts", opts, "timestamp", timestamp,
    "delay", delay, "priority", priority, unpack(extras))
  local labels = {}
  for i = 1, #extras, 2 do
    if extras[i] == "ox:lifetime" then
      call("ZADD", prefix .. "ox:expiring", timestamp + extras[i + 1], id)
    elseif LABELS[extras[i]] then
      labels[#labels + 1] = LABELS[extras[i]]
      labels[#labels + 1] = extras[i + 1]
    elseif extras[i] == "ox:group" then -- from its first job with a group on, a queue takes turns (parts/groups.lua)
      local fine, rules = pcall(cjson.decode, call("HGET", prefix .. "meta", "ox:limits") or "")
      if not fine or type(rules) ~= "table" then
        rules = { t = {}, k = { 0, 0 } }
      end
      if not rules.g then
        rules.g = { 0, 0, 0 }
        call("HSET", prefix .. "meta", "ox:limits", cjson.encode(rules))
      end
    end
  end
  local entry = call("XADD", prefix .. "events", "*", "event", "added", "jobId", id, "name", name)
  if #labels > 0 and is_attached(prefix) then
    redis.pcall("XADD", prefix .. "ox:attempts", "MAXLEN", "~", max_events(prefix), entry, "event", "added",
      "jobId", id, "name", name, unpack(labels))
  end
end
