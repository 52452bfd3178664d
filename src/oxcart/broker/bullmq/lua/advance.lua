-- Makes the next runs of schedules whose present runs were claimed.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 now or "" (time.lua), 4 how many; then for each:
--          kind, schedule, claimed job's id, time of the next run ("" by interval), its options, its data,
--          and for a repeatable job its id ("" otherwise)
--          kind is "s" for a scheduler, "r" for a repeatable job (older than schedulers)
-- Returns  per item the id of the new run, or "" if there was nothing to do, or "@" and a time if an earlier run
--          has that time (call again with a later one), or "!" and an error text
-- Events   `added` and then `waiting` or `delayed`; `duplicated` where the next run exists already
-- Keeps    exactly one client makes the next run: the claimed job must be the present run, and making the next one
--          advances the schedule
-- include: base gate insert store scheduling

local answer = remembered()
if answer then
  return answer
end
local now = tonumber(time_of(ARGV[3]))

local function advance(at)
  local scheduler, producer = ARGV[at + 1], ARGV[at + 2]
  local last = tonumber(call("ZSCORE", P .. "repeat", scheduler) or nil)
  if not last or producer ~= run_id(scheduler, last) then
    return ""
  end
  local record = P .. "repeat:" .. scheduler
  local kept = call("HMGET", record, "name", "data", "every", "offset")
  local opts = cjson.decode(ARGV[at + 4])
  local every = tonumber(kept[3] or opts["repeat"].every)
  local when = tonumber(ARGV[at + 3])
  if every then
    when = next_by_interval(last, every, now, tonumber(kept[4] or 0) or 0, nil)
  end
  max_events(P)
  local id
  for _ = 1, SLOTS do
    id = run_id(scheduler, when)
    if call("EXISTS", P .. id) == 0 then
      break
    end
    call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*", "event", "duplicated", "jobId", id)
    if place_of(id) then
      call("ZADD", P .. "repeat", whole(when), scheduler) -- a worker will claim it: it is the next run
      return ""
    elseif not every then
      return "@" .. whole(when)
    end
    when = when + every
  end
  local data = kept[2] or ARGV[at + 5]
  make_run(scheduler, when, now, kept[1] or "", data, opts, further_of(record))
  call("ZADD", P .. "repeat", whole(when), scheduler)
  call("HINCRBY", record, "ic", 1)
  if data ~= "{}" then
    call("HSET", record, "data", data)
  end
  call("HSET", P .. producer, "nrjid", id)
  return id
end

-- A repeatable job: its key identifies the schedule, and the caller computes the next run's id.
local function advance_repeatable(at)
  local key, when, id = ARGV[at + 1], ARGV[at + 3], ARGV[at + 6]
  if not call("ZSCORE", P .. "repeat", key) or call("EXISTS", P .. id) == 1 then
    return ""
  end
  call("ZADD", P .. "repeat", when, key)
  local opts = cjson.decode(ARGV[at + 4])
  opts.repeatJobKey, opts.delay = nil, math.max(1, tonumber(when) - now) -- the call may be late
  local name = call("HGET", P .. ARGV[at + 2], "name")
  local priority = tonumber(opts.priority) or 0
  call("INCR", P .. "id")
  store_job(P, id, name, ARGV[at + 5], cjson.encode(opts), whole(now), whole(opts.delay), priority, { "rjk", key })
  insert_delayed(P, id, now, opts.delay)
  wake_later(P)
  return id
end

local kinds = { s = advance, r = advance_repeatable }
local made = {}
local at = 5
for i = 1, tonumber(ARGV[4]) do
  local ok, id = pcall(kinds[ARGV[at]], at)
  made[i] = ok and id or "!" .. (type(id) == "table" and id.err or tostring(id))
  at = at + 7
end
return remember(made)
