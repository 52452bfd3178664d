-- Whether the worker that has a job's lease is still there.

-- A worker's heartbeat counts for so many ms.
local LIFE = 30000

-- When a worker last wrote its record: the first sign of a client that sends its heartbeat ten seconds later. A time that
-- is further ahead than a heartbeat lasts is no sign.
local function seen_lately(worker, now)
  local record = call("GET", P .. "workers:" .. worker)
  local at = tonumber(record and string.match(record, '"lastSeen"%s*:%s*(%d+)'))
  return at and at > now - LIFE and at < now + LIFE
end

-- Whether a job has no lease, or only that of a registered worker without a heartbeat. `now` is the server's time.
local function is_abandoned(id, now)
  local holder = call("GET", P .. "jobs:lock:" .. id)
  if not holder then
    return true
  end
  return call("SISMEMBER", P .. "workers:active", holder) == 1
    and call("EXISTS", P .. "workers:heartbeat:" .. holder) == 0
    and not seen_lately(holder, now)
end
