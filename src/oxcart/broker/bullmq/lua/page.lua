-- Reads a page of jobs of one state.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 state (wait, paused, active, prioritized, delayed, waiting-children, completed,
--          failed), 4 first, 5 last (inclusive, from 0), 6 "1" oldest first
-- Returns  a flat list of id and fields; an id without a job has an empty list
-- include: base

local state, first, last, oldest = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == "1"
local ids
if state == "wait" or state == "paused" or state == "active" then
  -- lists hold the newest at the head
  if oldest then
    local turned = call("LRANGE", P .. state, -(last + 1), -(first + 1))
    ids = {}
    for i = #turned, 1, -1 do
      ids[#ids + 1] = turned[i]
    end
  else
    ids = call("LRANGE", P .. state, first, last)
  end
else
  ids = call(oldest and "ZRANGE" or "ZREVRANGE", P .. state, first, last)
end
local jobs = {}
for _, id in ipairs(ids) do
  local fields = redis.pcall("HGETALL", P .. id)
  jobs[#jobs + 1] = id
  jobs[#jobs + 1] = fields.err and {} or fields
end
return jobs
