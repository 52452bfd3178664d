-- Makes a schedule, or changes the one of this id.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id, 4 record, 5 when it fires next, 6 what its times follow from
-- Returns  when it fires next
-- Keeps    the same schedule again leaves the next firing its time
-- include: base

asked_of_slot("SETRANGE", NEVER, 0, "")
local id = ARGV[3]
local known = P .. "ox:schedule:" .. id
local at = call("ZSCORE", P .. "jobs:cron", id)
if not at or call("HGET", known, "times") ~= ARGV[6] then
  at = ARGV[5]
  call("ZADD", P .. "jobs:cron", at, id)
end
call("HSET", known, "times", ARGV[6])
call("SET", P .. "jobs:data:" .. id, ARGV[4])
call("SET", P .. "jobs:status:" .. id, "cron")
return tostring(at)
