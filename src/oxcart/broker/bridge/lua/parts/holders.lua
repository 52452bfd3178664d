-- Whether the worker that holds a job still lives.

-- A worker's signs of life are good for so many ms.
local LIFE = 30000

-- When a worker last wrote its record: the first sign of life of a client that beats ten seconds later. A time that
-- is further ahead than a heartbeat lasts is no sign.
local function seen_lately(worker, now)
  local record = call("GET", P .. "workers:" .. worker)
  local at = tonumber(record and string.match(record, '"lastSeen"%s*:%s*(%d+)'))
  return at and at > now - LIFE and at < now + LIFE
end

-- Whether nobody holds a job, or only a registered worker without a sign of life. `now` is the server's time.
local function is_abandoned(id, now)
  local holder = call("GET", P .. "jobs:lock:" .. id)
  if not holder then
    return true
  end
  return call("SISMEMBER", P .. "workers:active", holder) == 1
    and call("EXISTS", P .. "workers:heartbeat:" .. holder) == 0
    and not seen_lately(holder, now)
end
