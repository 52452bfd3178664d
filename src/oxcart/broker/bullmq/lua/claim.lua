-- Claims ready jobs for a worker.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call
--          3 now or "" (time.lua), 4 how many, followed by the names of the lanes to choose from (parts/lanes.lua)
--          5 token, 6 lock ms, 7 worker name or "",
--          8 limiter max or "", 9 limiter duration or "", 10 payload bytes after which to stop,
--          11 microseconds of server time after which to stop, or ""; at least eight jobs are claimed in any case,
--          12 "1" if the worker isolates jobs that were lost before (isolate.lua), or ""
-- Returns  { {}, jobs, limited, due, closed, active, orphans, repeated, now }: jobs has a text per
--          job: its id, and its fields and values as they were before the claim (the caller adds one to `ats` and sets
--          `processedOn` to now). Between these stands a zero byte and the first twelve characters of the token. A
--          text of an even number of pieces ends with that separator and has values alone, whose names are those
--          of the last job before it with six fields;
--          repeated is 1, or 2 if the claim stopped because of its time limit;
--          limited and due in ms, 0 for none; active is the length of the active list. With a choice of lanes
--          the number of the chosen lane follows. If the script looked at more than the first lane, then also whether
--          that lane has more jobs, and the empty lanes with their next due times
-- Events   `waiting` per promoted job, `active` per claimed job, `delayed` per job that the limit of its type or key
--          holds back
-- Keeps    a claimed id is in `active` and has a lock; wait is served before prioritized; the marker is
--          set again after a claim, so that wake-ups chain from worker to worker
-- include: base gate insert claiming
-- include when needed: insert buckets groups limiting lanes

function promoting.groups()
  return { park_promoted = seldom().park_promoted, tend_groups = seldom().tend_groups }
end
local asked = read_asked(3)
local kept = remembered()
if kept then
  return repeat_claim(kept, asked)
end
local function limits_of(gate, now, count)
  return seldom().limiting(gate, now, count)
end
if not asked.count and not goes_to_first(asked) then
  return seldom().claim_in_lanes({}, asked, limits_of)
end
return answer_claim({}, claim_jobs(asked, limits_of), asked.now)
