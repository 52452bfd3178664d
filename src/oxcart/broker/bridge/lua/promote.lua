-- Promotes due delayed jobs.
--
-- KEYS[1]  waiting
-- ARGV     1 "", 2 "", 3 now or "" (time.lua), 4 how many at most
-- Returns  { how many, when the next is due or 0, how many jobs wait for others, the time that the call used }
-- Events   `waiting` per job
-- include: base lanes

asked_of_slot("SETRANGE", NEVER, 0, "")
local now = time_of(ARGV[3])
local moved = promote_due(now, tonumber(ARGV[4]))
return { moved, next_due(), call("ZCARD", P .. "ox:pending"), tonumber(now) }
