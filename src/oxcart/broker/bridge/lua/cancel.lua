-- Cancels jobs: waiting jobs end at once; running jobs are asked to end or, by force, end at once.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 now or "" (time.lua), 4 type, 5 reason, 6 the reason as JSON,
--          7 the result as JSON, 8 "1" by force, then per job: id, the id as JSON
-- Returns  per job 1 it has ended, 2 its worker was asked, -1 no such job, -3 it had ended before, -8 it is a schedule,
--          -14 a worker of another client runs it, which cannot be asked
-- Events   `failed` per job that ended
-- Keeps    reports of a worker about a job that ended by force are refused: its lock is gone
-- include: base lanes leaving

local kept = remembered()
if kept then
  return kept
end
local now, job_type, reason, force = time_of(ARGV[3]), ARGV[4], ARGV[5], ARGV[8] == "1"
local OVER = { completed = true, dead = true, failed = true }
-- Seconds after which an unread request to a worker expires.
local WAITS = 86400

local function settle(id, prev)
  local run = { fields_of_run(id, job_type, "failed", now, "cancelled", "", reason) }
  unlist_job(id, facts_of(id))
  call("HDEL", P .. "ox:job:" .. id, "depends", "due", "foreign", "ended")
  call("HSET", P .. "ox:job:" .. id, "failedReason", reason, "ox:category", "cancelled", "finishedOn", now)
  call("SET", P .. "jobs:result:" .. id, timed(ARGV[7], id, now), "EX", 86400)
  call("SET", P .. "jobs:status:" .. id, "failed")
  call("INCR", P .. "metrics:jobs:failed")
  emit(job_type, "failed", id, "failedReason", reason, "prev", prev, "state", "cancelled",
    unpack(prev == "active" and run or {}))
  if not keep_for(id, 86400) then
    note_end(id, job_type, "cancelled", now)
  end
  return 1
end

-- Asks a worker of ours; returns false if another client's worker has the lease.
local function ask(id, id_json, holder)
  local run = call("HMGET", P .. "ox:job:" .. id, "ats", "pb", "client")
  if not run[3] or run[2] ~= holder then
    return false
  end
  local place = P .. "ox:cancel:" .. run[3]
  call("ZADD", place, 0, string.format('{"id":%s,"starts":%s,"reason":%s,"force":%s}', id_json, run[1], ARGV[6],
    tostring(force)))
  call("EXPIRE", place, WAITS)
  return true
end

local function cancel_running(id, id_json)
  local holder = call("GET", P .. "jobs:lock:" .. id)
  local asked = holder and ask(id, id_json, holder)
  if force then
    leave(id, job_type)
    return settle(id, "active")
  elseif holder and not asked then
    return -14
  end
  call("HSET", P .. "ox:job:" .. id, "ox:cancel", reason) -- also for a worker that claims the job later
  return 2
end

local function cancel(id, id_json)
  local status = call("GET", P .. "jobs:status:" .. id)
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    return -1
  elseif OVER[status] then
    return -3
  elseif status == "cron" then
    return -8
  elseif call("EXISTS", P .. "jobs:lock:" .. id) == 1 or call("SISMEMBER", P .. "jobs:active", id) == 1 then
    return cancel_running(id, id_json)
  elseif call("ZREM", P .. "jobs:delayed", id) == 1 then
    return settle(id, "delayed")
  elseif call("ZREM", P .. "ox:pending", id) == 1 then
    unqueue(id) -- another client's job is in the list as well
    return settle(id, "waiting-children")
  end
  unqueue(id)
  return settle(id, "waiting")
end

local codes = {}
for at = 9, #ARGV, 2 do
  codes[#codes + 1] = cancel(ARGV[at], ARGV[at + 1])
end
return remember(codes)
