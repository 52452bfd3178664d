-- Resumes a paused schedule: makes its next run.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 now or "" (time.lua), 4 id, 5 options of the run, 6 time of the run ("" by interval)
-- Returns  1, or 0 if there is no such schedule; -10 a job of that id exists already, -11 too many slots are taken
-- Events   `added` and then `delayed` or `waiting`
-- Keeps    a schedule that is not paused stays as it is; runs by interval keep their offset
-- include: base gate insert store removal scheduling

local now, scheduler = tonumber(time_of(ARGV[3])), ARGV[4]
local record = P .. "repeat:" .. scheduler
local last = tonumber(call("ZSCORE", P .. "repeat", scheduler) or nil)
if not last or call("EXISTS", record) == 0 then
  return 0
elseif last < PAUSED then
  return 1
end
max_events(P)
local kept = call("HMGET", record, "name", "data", "every", "offset", "startDate")
local every, at = tonumber(kept[3] or nil), tonumber(ARGV[6])
if every and every >= 1 then
  local offset = tonumber(kept[4] or nil) or 0
  local after = math.max(now, (tonumber(kept[5] or nil) or 0) - 1)
  at = (math.floor((after - offset) / every) + 1) * every + offset
  for _ = 1, SLOTS do
    if call("EXISTS", P .. run_id(scheduler, at)) == 0 then
      break
    end
    at = at + every
  end
end
if not at or not (at < PAUSED) then
  return 0 -- a peer has spoiled the interval or the offset: there is no next run
end
if call("EXISTS", P .. run_id(scheduler, at)) == 1 then
  return every and -11 or -10
end
-- A peer that set the paused schedule anew has made a run beyond every time, with fewer digits in its id.
for _, beyond in ipairs({ run_id(scheduler, last), "repeat:" .. scheduler .. ":" .. tostring(last) }) do
  if call("ZREM", P .. "delayed", beyond) == 1 then
    drop_deduplication(P, P .. beyond, beyond)
    delete_data(P .. beyond)
  end
end
make_run(scheduler, at, now, kept[1] or "", kept[2] or "{}", cjson.decode(ARGV[5]), further_of(record))
call("ZADD", P .. "repeat", whole(at), scheduler)
call("HINCRBY", record, "ic", 1)
return 1
