-- Closes a deduplication window: the next add of its name makes a job.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 name, 4 id of the job that must own it, or "" for any
-- Returns  1 closed, 0 there was none, or another job owns it
-- Keeps    an add that was kept for the owner's end still becomes a job
-- include: base

local answer = remembered()
if answer then
  return answer[1]
end
local key = P .. "de:" .. ARGV[3]
local owner = call("GET", key)
local closed = 0
if owner and (ARGV[4] == "" or owner == ARGV[4]) then
  closed = call("DEL", key)
end
remember({ closed })
return closed
