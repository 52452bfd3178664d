-- Checks whether the worker that has a job's lease is still alive.

-- For how many ms a worker's heartbeat counts.
local LIFE = 30000

-- Returns when a worker last wrote its record: the first sign of life of a client whose heartbeat follows ten seconds
-- later. A time further ahead than a heartbeat lasts does not count.
local function seen_lately(worker, now)
  local record = call("GET", P .. "workers:" .. worker)
  local at = tonumber(record and string.match(record, '"lastSeen"%s*:%s*(%d+)'))
  return at and at > now - LIFE and at < now + LIFE
end

-- Returns whether a job has no lease, or only that of a registered worker without a heartbeat. `now` is the server's
-- time.
local function is_abandoned(id, now)
  local holder = call("GET", P .. "jobs:lock:" .. id)
  if not holder then
    return true
  end
  return call("SISMEMBER", P .. "workers:active", holder) == 1
    and call("EXISTS", P .. "workers:heartbeat:" .. holder) == 0
    and not seen_lately(holder, now)
end
