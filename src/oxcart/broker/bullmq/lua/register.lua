-- A worker's heartbeat: stores its record, and drops workers without a recent heartbeat.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 the worker, 4 its record or "" when it ends, 5 for how many ms its heartbeat counts,
--          6 "1" to wake it for new lanes, "2" for every add to a lane, else ""
-- Returns  1
-- Keeps    uses the server's clock: one worker whose clock is ahead would drop all others
-- include: base

remembered()
local now, worker, life, wakes_for = server_ms(), ARGV[3], ARGV[5], ARGV[6]
local record = P .. "ox:worker:" .. worker

-- A worker of many queues sends few heartbeats, and must not be dropped by one of few queues. A record expires by itself.
local LONGEST = 3600000

local longest = math.max(LONGEST, tonumber(life))

local function listed(set, is_in, score, before)
  local key = P .. set
  call("ZREMRANGEBYSCORE", key, "-inf", before)
  if is_in then
    call("ZADD", key, score, worker)
    call("PEXPIRE", key, longest)
  else
    call("ZREM", key, worker)
  end
end

-- Workers that are woken stand by when their heartbeat no longer counts, so that each is dropped in its own time.
local lives, ends = ARGV[4] ~= "", tonumber(now) + tonumber(life)
listed("ox:workers", lives, now, tonumber(now) - longest)
listed("ox:listeners", lives and wakes_for ~= "", ends, "(" .. now)
listed("ox:crowded", lives and wakes_for == "2", ends, "(" .. now)
if lives then
  call("SET", record, ARGV[4], "PX", life)
else
  call("UNLINK", record, P .. "ox:wake:" .. worker)
end
return 1
