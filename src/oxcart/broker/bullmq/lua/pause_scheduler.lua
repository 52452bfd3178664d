-- Pauses a schedule: removes its next run if that is still delayed, and makes none until `resume_scheduler`.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 id
-- Returns  1, or 0 if there is no such schedule
-- Events   `removed` for the run
-- Keeps    a run that is due or running is the last: the time of the next one is beyond every run, so that no client
--          makes another when it claims that one
-- include: base gate insert store removal scheduling

local scheduler = ARGV[3]
local at = tonumber(call("ZSCORE", P .. "repeat", scheduler) or nil)
if not at or call("EXISTS", P .. "repeat:" .. scheduler) == 0 then
  return 0
end
if at < PAUSED then
  local id = run_id(scheduler, at)
  if call("ZREM", P .. "delayed", id) == 1 then
    drop_deduplication(P, P .. id, id)
    delete_data(P .. id)
    call("HINCRBY", P .. "repeat:" .. scheduler, "ic", -1)
    call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*", "event", "removed", "jobId", id, "prev", "delayed")
  end
  call("ZADD", P .. "repeat", whole(PAUSED), scheduler)
end
return 1
