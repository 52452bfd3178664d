-- Reads a page of jobs of one state.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 state (wait, paused, active, prioritized, delayed, waiting-children, completed,
--          failed), 4 first, 5 last (inclusive, from 0), 6 "1" oldest first; or 3 "ids", then ids
-- Returns  a flat list of id and fields; an id without a job has an empty list. An id that this call had
--          no time for has 0 instead: the caller requests it again by its id
-- include: base

-- The most that one call reads: about 2 ms of server time.
local JOBS, BYTES = 100, 1048576

local state, first, last, oldest = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == "1"
local ids
if state == "ids" then
  ids = { unpack(ARGV, 4) }
elseif state == "wait" or state == "paused" or state == "active" then
  -- lists hold the newest job at the head
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
local jobs, bytes = {}, 0
for i, id in ipairs(ids) do
  local fields = 0
  if i <= JOBS and bytes < BYTES then
    fields = redis.pcall("HGETALL", P .. id)
    if fields.err then
      fields = {}
    end
    for j = 2, #fields, 2 do
      bytes = bytes + #fields[j]
    end
  end
  jobs[#jobs + 1] = id
  jobs[#jobs + 1] = fields
end
return jobs
