-- Adds jobs with no more than the protocol demands: a hash, a place in `wait` and an event per job.
--
-- KEYS[1]  prefix of the queue
-- ARGV     1 time; then id and data of each job
-- Returns  how many were added
-- Events   `waiting`
-- Keeps    the lists are written once per call. At most 1 000 jobs: Lua unpacks about 8 000 values
local P, now = KEYS[1], ARGV[1]
local call = redis.call
local ids = {}
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  call("HSET", P .. id, "name", "job", "data", ARGV[i + 1], "opts", "{}", "timestamp", now, "delay", "0",
    "priority", "0")
  call("XADD", P .. "events", "MAXLEN", "~", 10000, "*", "event", "waiting", "jobId", id)
  ids[#ids + 1] = id
end
call("LPUSH", P .. "wait", unpack(ids))
return #ids
