-- Changes when a delayed job is due.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id, 4 type, 5 now or "" (time.lua), 6 delay ms
-- Returns  1, -1 no such job, -3 not delayed
-- Events   `delayed`
-- include: base

asked_of_slot("SETRANGE", NEVER, 0, "")
local id = ARGV[3]
if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
  return -1
elseif not call("ZSCORE", P .. "jobs:delayed", id) then
  return -3
end
local due = string.format("%.0f", time_of(ARGV[5]) + ARGV[6])
call("ZADD", P .. "jobs:delayed", due, id)
call("ZADD", P .. "ox:marker:" .. ARGV[4], due, "1")
emit(ARGV[4], "delayed", id, "delay", due)
return 1
