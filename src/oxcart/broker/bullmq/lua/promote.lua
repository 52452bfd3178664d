-- The tick: promotes due jobs, checks limits that may have room again, and merges `wait` and `paused`.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 the time up to which jobs are due, or "" (time.lua), 4 how many at most, 5 the time to
--          record if that is not 3, or "" for the server's; to promote jobs before they are due also 6 the score to
--          begin at, 7 how many jobs of that score to pass by: jobs that wait for their group's turn stay as they are
-- Returns  { how many were due, ms time of the next delayed job or 0, ms time at which the next lifetime expires or 0,
--          the time that the call used, bounds in `meta` that make no sense or stop the queue, or "",
--          microseconds of server time that the promotion took, 0 without a CPU clock },
--          with 6 also 6 and 7 for the next call, 6 is "" behind the last job
-- Events   `waiting` per job
-- include: base gate insert timing
-- include when needed: insert buckets groups limiting

function promoting.groups()
  return { park_promoted = seldom().park_promoted, tend_groups = seldom().tend_groups }
end
remembered()
local gate = read_gate(P)
if not gate.paused then
  settle(P, false)
end
local now = tonumber(time_of(ARGV[3]))
local from = ARGV[6] and { ARGV[6], tonumber(ARGV[7]) }
local moved = promote_due(P, gate, now, tonumber(ARGV[4]), nil, ARGV[5] and time_of(ARGV[5]), from)
local spent = spent_us()
if gate.limits and seldom().open_due(gate, now, 50) then
  moved = tonumber(ARGV[4]) -- there may be more: the caller calls again
end
if gate.limits and not gate.paused then
  seldom().tick_groups(gate, now)
end
if moved == 0 and not gate.closed and call("EXISTS", P .. "wait", P .. "prioritized") > 0 then
  -- a resume by an older peer leaves ready jobs without a marker, and so does returning a job with a priority
  wake_now(P, gate)
end
local due = next_due(P)
local expiring = call("ZRANGE", P .. "ox:expiring", 0, 0, "WITHSCORES")
local answer = { moved, due and math.floor(due) or 0, tonumber(expiring[2]) or 0, now, gate.odd or "", spent }
if from then
  answer[7], answer[8] = from[1], from[2]
end
return answer
