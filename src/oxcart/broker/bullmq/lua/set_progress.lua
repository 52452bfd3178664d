-- Writes a job's progress.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 progress as JSON
-- Returns  1, or -1 no such job
-- Events   `progress`
-- include: base

local answer = remembered()
if answer then
  return answer[1]
end
local key = P .. ARGV[3]
if call("EXISTS", key) == 0 then
  return -1
end
call("HSET", key, "progress", ARGV[4])
call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*",
  "event", "progress", "jobId", ARGV[3], "data", ARGV[4])
remember({ 1 })
return 1
