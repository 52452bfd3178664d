-- Creates or changes a schedule, and makes its next run.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 now or "" (time.lua), 4 id, 5 name, 6 data, 7 template options, 8 options of the run,
--          9 time of the run ("" by interval), 10 interval, 11 offset, 12 start, 13 end, 14 limit, 15 zone,
--          16 pattern ("" for what is not set), then our further fields of every run, as field and value
-- Returns  { id of the run, its delay }, or -10 a job of that id exists already, -11 too many slots are taken
-- Events   `added` and then `waiting` or `delayed`
-- Keeps    a run that still waits is replaced, and keeps its time unless the schedule itself has changed. Sending
--          the same schedule again, as every start of a service does, neither loses nor repeats a run.
--          A paused schedule stays paused, and gets no run. A refused call has changed nothing.
-- include: base gate insert store removal scheduling

local answer = remembered()
if answer then
  return #answer == 1 and answer[1] or answer
end
max_events(P)

local function given(at)
  return ARGV[at] ~= "" and ARGV[at] or nil
end

local now, scheduler, opts = tonumber(time_of(ARGV[3])), ARGV[4], cjson.decode(ARGV[8])
local record = P .. "repeat:" .. scheduler
local every, offset = tonumber(ARGV[10]), tonumber(ARGV[11])
local last = tonumber(call("ZSCORE", P .. "repeat", scheduler) or nil)
local kept = call("HMGET", record, "every", "pattern", "tz", "startDate", "offset", "ic")
local same = last and (kept[1] or nil) == given(10) and (kept[2] or nil) == given(16)
  and (kept[3] or nil) == given(15) and (kept[4] or nil) == given(12)
  and (not offset or tonumber(kept[5] or nil) == offset)

-- A present run that still waits is replaced.
local present = last and run_id(scheduler, last)
local place = present and call("EXISTS", P .. present) == 1 and place_of(present)
local paused = last and last >= PAUSED
local at, shift
if paused then
  at, shift = PAUSED, same and kept[5] or offset or 0
elseif place and same then
  at, shift = last, kept[5] or nil
elseif every then
  at, shift = next_by_interval(same and last or nil, every, now, offset or 0, tonumber(ARGV[12]))
else
  at, shift = tonumber(ARGV[9]), 0
end

local function taken(time)
  local id = run_id(scheduler, time)
  return not (place and id == present) and call("EXISTS", P .. id) == 1
end
if every then
  for _ = 1, SLOTS do
    if not taken(at) then
      break
    end
    at = at + every
  end
end
if taken(at) then
  local code = every and -11 or -10
  remember({ code })
  return code
end

if place then
  if place == "delayed" or place == "prioritized" then
    call("ZREM", P .. place, present)
  else
    call("LREM", P .. place, 1, present)
  end
  detach_from_living_parent(P .. present)
  drop_deduplication(P, P .. present, present)
  delete_data(P .. present)
end

call("ZADD", P .. "repeat", whole(at), scheduler)
local fields = { "name", ARGV[5] }
local function set(field, value)
  if value then
    fields[#fields + 1] = field
    fields[#fields + 1] = value
  end
end
set("tz", given(15))
set("limit", given(14))
set("pattern", given(16))
set("startDate", given(12))
set("endDate", given(13))
set("every", given(10))
set("offset", shift and whole(shift))
set("opts", ARGV[7] ~= "{}" and ARGV[7])
set("data", ARGV[6] ~= "{}" and ARGV[6])
set("ic", kept[6] or 1)
local further = {}
for i = 17, #ARGV do
  further[#further + 1] = ARGV[i]
  fields[#fields + 1] = ARGV[i]
end
call("DEL", record)
call("HSET", record, unpack(fields))
if paused then
  return remember({ run_id(scheduler, at), at - now })
end
local id, delay = make_run(scheduler, at, now, ARGV[5], ARGV[6], opts, further)
return remember({ id, delay })
