-- Lowers the limit of jobs at once of a partition to its new share, and leaves it the places of the jobs that run.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 the share
-- Returns  the limit that it left: others may have the rest
-- Keeps    a limit at or below the share stays. Without a limit, it is the number of jobs that run. No job can start
--          between the count and the change, as one could between two calls
-- include: base

local share, running = tonumber(ARGV[3]), call("LLEN", P .. "active")
local present = tonumber(call("HGET", KEYS[1], "concurrency") or nil)
if not (present and present >= 0 and present < 2 ^ 53) then
  present = nil -- it bounds nothing
end
local bound = present or running
local left = bound <= share and bound or math.max(share, math.min(running, bound))
if left ~= present then
  call("HSET", KEYS[1], "concurrency", string.format("%.0f", left))
end
return left
