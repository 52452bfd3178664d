-- Lets delayed jobs through whose time has come.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 now, 4 how many at most
-- Returns  { how many, when the next is due or 0, how many jobs wait for others }
-- Events   `waiting` per job
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")
local moved = promote_due(ARGV[3], tonumber(ARGV[4]))
local first = call("ZRANGE", P .. "jobs:delayed", 0, 0, "WITHSCORES")
return { moved, math.ceil(tonumber(first[2] or 0)), call("ZCARD", P .. "ox:pending") }
