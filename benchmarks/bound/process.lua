-- Completes jobs and claims others with no more than the protocol demands of each job.
--
-- KEYS[1]  prefix of the queue
-- ARGV     1 time, 2 token, 3 lease in ms, 4 how many to claim; then the ids of the jobs that end
-- Returns  for each claimed job its id and its hash
-- Events   `completed`, `active`
-- Keeps    lists, sets and the removal of locks take one command per call. The ended jobs are the oldest in `active`
local P, now, token, lease, most = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local call = redis.call
local events = P .. "events"

local ended = #ARGV - 4
if ended > 0 then
  local locks, scores, ids = {}, {}, {}
  for i = 1, ended do
    local id = ARGV[i + 4]
    local key = P .. id
    call("HSET", key, "returnvalue", "null", "finishedOn", now, "atm", "1")
    call("XADD", events, "MAXLEN", "~", 10000, "*", "event", "completed", "jobId", id, "returnvalue", "null",
      "prev", "active")
    locks[i] = key .. ":lock"
    scores[2 * i - 1], scores[2 * i] = now, id
    ids[i] = id
  end
  call("LTRIM", P .. "active", 0, -ended - 1)
  call("SREM", P .. "stalled", unpack(ids))
  call("DEL", unpack(locks))
  call("ZADD", P .. "completed", unpack(scores))
end

local ids = most > 0 and call("RPOP", P .. "wait", most) or {}
if #ids == 0 then
  return {}
end
call("LPUSH", P .. "active", unpack(ids))
local jobs = {}
for i = 1, #ids do
  local id = ids[i]
  local key = P .. id
  jobs[2 * i - 1], jobs[2 * i] = id, call("HGETALL", key)
  call("SET", key .. ":lock", token, "PX", lease)
  call("HSET", key, "processedOn", now, "ats", "1", "pb", "bound")
  call("XADD", events, "MAXLEN", "~", 10000, "*", "event", "active", "jobId", id, "prev", "waiting")
end
return jobs
