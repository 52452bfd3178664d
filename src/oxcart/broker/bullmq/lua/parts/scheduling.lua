-- Makes the runs of a schedule.
--
-- A schedule `id` has a member in the sorted set `repeat`, whose score is the time of its next run, a record
-- `repeat:<id>`, and exactly one job that is its next run: `repeat:<id>:<time>`. Needs base, gate, insert and store.

local function whole(number)
  return string.format("%.0f", number)
end

local function run_id(scheduler, at)
  return "repeat:" .. scheduler .. ":" .. whole(at)
end

-- Most taken slots that are skipped.
local SLOTS = 32

-- The time of the next run of a paused schedule, in the year 9999; a peer that sets it anew may add an interval.
local PAUSED = 253402300799999

-- Returns our own fields of a record, which every run has too, as a flat list.
local function further_of(record)
  local found = {}
  local fields = call("HGETALL", record)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 3) == "ox:" then
      found[#found + 1] = fields[i]
      found[#found + 1] = fields[i + 1]
    end
  end
  return found
end

-- Returns the state in which a run waits to be claimed, or nil.
local function place_of(id)
  for _, set in ipairs({ "delayed", "prioritized" }) do
    if call("ZSCORE", P .. set, id) then
      return set
    end
  end
  for _, list in ipairs({ "wait", "paused" }) do
    if call("LPOS", P .. list, id) then
      return list
    end
  end
end

-- Returns the time of the run after the one at `last` (nil for none), for a schedule by interval; and its offset from
-- a multiple of the interval, which runs keep when some were missed.
local function next_by_interval(last, every, now, offset, start)
  local at
  if last then
    at = last + every
    if at < now then
      at = math.floor(now / every) * every + offset
      if at <= now then
        at = at + every
      end
    end
  elseif start then
    at = math.max(start, now)
  elseif offset > 0 then
    at = math.floor(now / every) * every + offset
    if at <= now then
      at = at + every
    end
  else
    at = now
  end
  if offset == 0 then
    offset = at - math.floor(at / every) * every
  end
  return math.floor(at), math.floor(offset)
end

-- Stores the job of a run and inserts it. `opts` is a decoded table, `further` a flat list of our hash fields.
-- Returns the job's id and its delay.
local function make_run(scheduler, at, now, name, data, opts, further)
  local id = run_id(scheduler, at)
  local delay = math.max(0, at - now)
  opts.delay, opts.jobId = delay, id
  local priority = tonumber(opts.priority) or 0
  local extras = { "rjk", scheduler }
  if type(opts.de) == "table" and opts.de.id then
    extras[3], extras[4] = "deid", opts.de.id
  end
  for _, item in ipairs(further) do
    extras[#extras + 1] = item
  end
  call("INCR", P .. "id")
  store_job(P, id, name, data, cjson.encode(opts), whole(now), whole(delay), priority, extras)
  if delay > 0 then
    insert_delayed(P, id, now, delay)
    wake_later(P)
  else
    insert_waiting(P, read_gate(P), id, priority, opts.lifo and true or false)
    call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*", "event", "waiting", "jobId", id)
  end
  return id, delay
end
