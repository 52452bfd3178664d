-- Lets delayed jobs through whose time has come.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 now, 4 how many at most
-- Returns  { how many, when the next is due or 0, how many jobs wait for others }
-- Events   `waiting` per job
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")
local moved = promote_due(ARGV[3], tonumber(ARGV[4]))
return { moved, next_due(), call("ZCARD", P .. "ox:pending") }
