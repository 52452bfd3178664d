-- Claims ready jobs for a worker.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call
--          3 now or "" (time.lua), 4 how many, and where there is a choice of lanes their names (parts/lanes.lua),
--          5 token, 6 lock ms, 7 worker name or "",
--          8 limiter max or "", 9 limiter duration or "", 10 payload bytes after which to stop,
--          11 microseconds of the server's time after which to stop, or "": eight jobs are claimed in any case
-- Returns  { {}, jobs, limited, due, closed, active, orphans, repeated, now }: jobs is a flat list of id and
--          fields as they were before the claim (the caller adds one to `ats` and sets `processedOn` to now), in
--          MessagePack, because each string of an answer costs the server three times as much;
--          repeated is 1, or 2 where the claim stopped for the time it took;
--          limited and due in ms, 0 for none; active is the length of the active list. Where there was a choice,
--          behind them which lane it was, and unless it was the first without a look at the others whether it has more,
--          and the lanes without jobs with their next due times
-- Events   `waiting` per delayed job whose time had come, `active` per claimed job, `delayed` per job that is held
--          back by the limit of its type or key
-- Keeps    a claimed id is in `active` and has a lock; wait is served before prioritized; the marker is
--          set again after a claim, so that wake-ups chain from worker to worker
-- include: base gate insert claiming
-- include when needed: insert limiting lanes

local asked = read_asked(3)
local kept = remembered()
if kept then
  return repeat_claim(kept, asked)
end
local function limits_of(gate, now)
  return seldom().limiting(gate, now)
end
if not asked.count and not goes_to_first(asked) then
  return seldom().claim_in_lanes({}, asked, limits_of)
end
return answer_claim({}, claim_jobs(asked, limits_of), asked.now)
