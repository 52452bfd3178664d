-- Lets a finished job run again.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 state it is in ("failed" or "completed"),
--          5 "L" for last-in-first-out, 6 "1" to reset its attempts, "S" its starts, "1S" both,
--          7 now or "" (time.lua)
-- Returns  1, or -1 no such job, -3 not in that state
-- Events   `waiting`
-- Keeps    a child that runs again is a dependency of its parent again; `ats`, the fencing number, only grows
-- include: base gate insert failing steps retrying

local answer = remembered()
if answer then
  return answer[1]
end
local reset = string.find(ARGV[6], "1", 1, true)
local code = retry_one(read_gate(P), ARGV[3], ARGV[4], ARGV[5] == "L", reset, time_of(ARGV[7]))
if code == 1 then
  local starts = string.find(ARGV[6], "S", 1, true) and call("HGET", P .. ARGV[3], "ats")
  if starts then
    call("HSET", P .. ARGV[3], "ox:forgiven", starts, "ox:restarted", starts)
  end
  remember({ 1 })
end
return code
