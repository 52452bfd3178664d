-- Puts back jobs that are in no list: no worker would ever run them.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 "1" to change nothing, then per job: id, type, when it is due or 0
-- Returns  per job 1 it waits now, or is delayed; 2 or more it was running when it was lost: it is in `active`, where
--          the recovery finds it, and 1 less is how often that happened within a day; 0 it is in a list;
--          -1 no such job, -2 it is leased, -3 it has ended
-- Events   `waiting` or `delayed` per job
-- Keeps    a job is in one of waiting, active, delayed, cron, pending and dead letters
-- include: base lanes

local kept = remembered()
if kept then
  return kept
end
local OVER = { completed = true, dead = true, failed = true }
local now = tonumber(server_ms())

local function place(id, status)
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    return -1
  elseif OVER[status] then
    return -3
  elseif call("SISMEMBER", P .. "jobs:active", id) == 1 or call("ZSCORE", P .. "jobs:delayed", id)
    or call("ZSCORE", P .. "jobs:cron", id) or call("ZSCORE", P .. "ox:pending", id)
    or call("LPOS", WAITING, id) or call("LPOS", P .. "jobs:deadletter", id) then
    return 0
  elseif call("EXISTS", P .. "jobs:lock:" .. id) == 1 then
    return -2
  end
  return nil
end

local function bring_back(id, job_type, due, status)
  unlist_job(id, facts_of(id)) -- the next scan of the list finds it
  if status == "active" then
    call("SADD", P .. "jobs:active", id)
    local key = P .. "ox:rescued:" .. id
    local times = call("INCR", key)
    call("EXPIRE", key, 86400)
    return 1 + times
  elseif due > now then
    call("SET", P .. "jobs:status:" .. id, "delayed")
    call("ZADD", P .. "jobs:delayed", string.format("%.0f", due), id)
    emit(job_type, "delayed", id, "delay", string.format("%.0f", due))
  else
    call("LPUSH", WAITING, id)
    call("SET", P .. "jobs:status:" .. id, "waiting")
    call("ZADD", P .. "ox:marker:" .. job_type, 0, "0")
    emit(job_type, "waiting", id)
  end
  return 1
end

local codes = {}
for at = 4, #ARGV, 3 do
  local id = ARGV[at]
  local status = call("GET", P .. "jobs:status:" .. id)
  local code = place(id, status)
  if not code then
    code = ARGV[3] == "1" and 1 or bring_back(id, ARGV[at + 1], tonumber(ARGV[at + 2]), status)
  end
  if ARGV[3] ~= "1" then
    call("ZREM", P .. "ox:missing", id)
  end
  codes[#codes + 1] = code
end
return remember(codes)
