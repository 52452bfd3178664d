-- Lets a job that has ended run again.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id, 4 type, 5 its facts, 6 "L" for the head of the list or "",
--          7 its record with the attempts counted anew, or ""
-- Returns  1, -1 no such job, -3 it has not ended
-- Events   `waiting`
-- Keeps    it leaves the dead letters; nothing of it goes away by itself any more
-- include: base lanes

local kept = remembered()
if kept then
  return kept[1]
end
local id = ARGV[3]
local status = call("GET", P .. "jobs:status:" .. id)
if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
  return -1
elseif status ~= "dead" and status ~= "failed" and status ~= "completed" then
  return -3
end
call("LREM", P .. "jobs:deadletter", 1, id)
call("DEL", P .. "jobs:result:" .. id, P .. "jobs:progress:" .. id)
for _, state in ipairs({ "completed", "failed", "cancelled" }) do
  call("ZREM", P .. "ox:ended:" .. state .. ":" .. ARGV[4], id)
end
call("PERSIST", P .. "ox:job:" .. id)
call("HDEL", P .. "ox:job:" .. id, "finishedOn", "failedReason", "stacktrace", "ox:category", "ox:code", "ox:cancel")
if ARGV[7] == "" then
  call("PERSIST", P .. "jobs:data:" .. id)
else
  call("SET", P .. "jobs:data:" .. id, ARGV[7])
end
call("HSET", P .. "ox:facts", id, ARGV[5])
make_ready(id, cmsgpack.unpack(ARGV[5]), ARGV[6] == "L")
tell(ARGV[4], "waiting", id, "prev", status == "dead" and "failed" or status)
return remember({ 1 })[1]
