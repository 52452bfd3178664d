-- Claims ready jobs of one type for a worker.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 now or "" (time.lua), 4 how many, 5 worker id, 6 lock ms, 7 type,
--          8 payload bytes after which to stop, 9 list entries to scan for jobs of other clients,
--          10 how many lanes the worker serves, their names
-- Returns  { {}, jobs, limited, due, closed, active, orphans, repeated, unknown, more, lanes, awaited, now }: jobs
--          is a list of { id, starts, record, fields of earlier runs } in MessagePack; limited and due in ms; unknown
--          are ids that the caller must read and `index`; more is 1 until the scan reaches the end of the list;
--          lanes are those with work that the caller did not name; awaited is for finish.lua
-- Events   `active` per claimed job, `waiting` per promoted job
-- Keeps    a claimed id is in `active`, has the worker's lock, and counts for its type; match first, lock once
-- include: base lanes counting claiming

local asked = read_asked(3)
local kept = remembered()
if kept then
  return repeat_claim(kept, asked)
end
return answer_claim({}, claim_jobs(asked), asked)
