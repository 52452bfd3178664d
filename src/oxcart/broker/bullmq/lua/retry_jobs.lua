-- Lets finished jobs run again, selected by the time of their end: one step.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 state ("failed" or "completed"), 4 first and 5 last time in ms,
--          6 how many at most, 7 how many to skip, which earlier steps could not move,
--          8 "1" to reset their attempts, 9 now or "" (time.lua)
-- Returns  { how many will run again, how many could not be moved, 1 while there may be more, microseconds of server
--          time that this took, 0 without a CPU clock }
-- Events   `waiting` per job
-- Keeps    the same result as that many single retries, oldest end first; an id without a job is dropped
-- include: base gate insert failing steps retrying timing

local answer = remembered()
if answer then
  return answer
end
local state, most = ARGV[3], tonumber(ARGV[6])
local ids = call("ZRANGEBYSCORE", P .. state, ARGV[4], ARGV[5], "LIMIT", ARGV[7], most)
local gate = read_gate(P)
local moved, stuck = 0, 0
for _, id in ipairs(ids) do
  local fine, code = pcall(retry_one, gate, id, state, false, ARGV[8] == "1", time_of(ARGV[9]))
  if fine and code == 1 then
    moved = moved + 1
  elseif fine and code == -1 then
    call("ZREM", P .. state, id)
  else
    stuck = stuck + 1
  end
end
return remember({ moved, stuck, #ids == most and 1 or 0, spent_us() })
