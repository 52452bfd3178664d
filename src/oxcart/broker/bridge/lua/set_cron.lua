-- Creates a schedule, or changes the one of this id.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 id, 4 record, 5 when it fires next, 6 the rule that determines its times
-- Returns  when it fires next
-- Keeps    setting the same schedule again does not move its next firing; a paused one, which fires never, stays so
-- include: base

asked_of_slot("SETRANGE", NEVER, 0, "")
local id = ARGV[3]
local known = P .. "ox:schedule:" .. id
local at = call("ZSCORE", P .. "jobs:cron", id)
if not at or at ~= "inf" and call("HGET", known, "times") ~= ARGV[6] then
  at = ARGV[5]
  call("ZADD", P .. "jobs:cron", at, id)
end
call("HSET", known, "times", ARGV[6])
call("SET", P .. "jobs:data:" .. id, ARGV[4])
call("SET", P .. "jobs:status:" .. id, "cron")
return tostring(at)
