-- Counts the jobs in some of a queue's lanes.
--
-- KEYS[1]  meta of the base queue
-- ARGV     1 "", 2 "" (only reads), then lanes
-- Returns  a flat list: for each how many of its jobs are in wait, paused, active, prioritized, delayed,
--          waiting-children, completed and failed
-- include: base lanes

local LENGTH = { "LLEN", "LLEN", "LLEN", "ZCARD", "ZCARD", "ZCARD", "ZCARD", "ZCARD" }
local STATES = { "wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed" }
local counts = {}
for at = 3, #ARGV do
  local prefix = lane_prefix(P, ARGV[at])
  for i, state in ipairs(STATES) do
    counts[#counts + 1] = call(LENGTH[i], prefix .. state)
  end
end
return counts
