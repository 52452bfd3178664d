-- Saves how far a running job has come, for whoever holds it.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 id, 4 worker id, 5 what to save
-- Returns  1, -1 no such job, -2 nobody holds it, -6 another worker does
-- include: base

asked_of_slot("SETRANGE", NEVER, 0, "")
if call("EXISTS", P .. "jobs:data:" .. ARGV[3]) == 0 then
  return -1
end
local holder = call("GET", P .. "jobs:lock:" .. ARGV[3])
if not holder then
  return -2
elseif holder ~= ARGV[4] then
  return -6
end
call("HSET", P .. "ox:job:" .. ARGV[3], "ox:checkpoint", ARGV[5])
return 1
