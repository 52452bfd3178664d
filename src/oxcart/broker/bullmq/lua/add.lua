-- Adds jobs: to the ready list, by priority, or delayed.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call
--          3 how many jobs
--          4 how many of them are tied to a parent or a deduplication window; for a lane followed by "@" and its name
--          then for each job:
--          id, name, data, opts, timestamp or "" (time.lua), delay, priority, flags, number of further hash fields, and
--          these as field, value. An empty id asks for the next number of the queue's counter.
--          Flags: "" or "L" for last-in-first-out. "I" and ms for a job with an idempotency key (in the field
--          `ox:idem`), which keeps duplicates out for that time. Flags of a tied job begin with "T" (parts/adding.lua)
--          A batch without delay, priority, flags and further fields, and with ids that differ, has "=" as 4 and
--          then runs of jobs that share most: name, opts, timestamp or "", how many, and for each id, data
-- Returns  the server's time alone if all jobs of a batch of runs were added; else
--          a list with one code per job: 1 added, 0 the id exists already (nothing changed), -5 its parent
--          does not exist, -7 the id belongs to another parent, -13 it is above its
--          parent, { id } the job that owns its deduplication
--          window, { id, 1 } the job that owns its idempotency key, { id, 2 } added under the number that the
--          queue gave it, or an error text if the server refused that job alone; last the server's time
-- Events   per job `added` and then `waiting` or `delayed`; `duplicated` for an id that exists; `debounced`
--          and `deduplicated` for a job that a window kept out
-- Keeps    the counter `id` grows by one per job, as peers expect, although most ids come from the caller
-- include: base gate insert store
-- include when needed: insert parent removal window adding keyed lanes buckets groups

-- Most calls add one plain job. This fast path needs the fewest commands possible.
-- The push onto the list comes first: it is the one write that the server refuses when it is out of memory or the key
-- has another type.
local ARGV = ARGV -- a global costs five times as much
if ARGV[3] == "1" and ARGV[4] == "0" and ARGV[5] ~= "" and ARGV[10] == "0" and ARGV[11] == "0" and ARGV[12] == ""
  and ARGV[13] == "0" then
  local kept = recalled()
  if kept then
    return kept
  end
  local id, key, events = ARGV[5], P .. ARGV[5], P .. "events"
  local gate = asked_of_slot("EXISTS", key, NEVER) == 0 and read_gate(P)
  local grouped = gate and gate.limits and string.find(gate.limits, '"g":', 1, true)
  if gate and not gate.base and not grouped then -- with lanes, the id may be in one of them
    call("LPUSH", gate.target, id)
    local fine, fault = pcall(function()
      call("INCR", P .. "id")
      store_job(P, id, ARGV[6], ARGV[7], ARGV[8], time_of(ARGV[9]), "0", "0")
      call("XADD", events, "MAXLEN", "~", max_events(P), "*", "event", "waiting", "jobId", id)
      wake_now(P, gate)
    end)
    if fine then
      return remember({ 1, tonumber(server_ms()) })
    end
    call("LREM", gate.target, 1, id)
    call("DEL", key) -- else a later add of this id would find it and report a duplicate
    return remember({ type(fault) == "table" and fault.err or tostring(fault), tonumber(server_ms()) })
  end
end

local runs = ARGV[4] == "="
local count, ties = tonumber(ARGV[3]), runs and 0 or tonumber(ARGV[4])
local lane
if not ties then
  ties, lane = string.match(ARGV[4], "^(%d+)@(.+)$")
end
local plain = count - ties
local answer = remembered(plain > 0)
if answer then
  return answer
end

if lane then
  -- The first write: the server refuses it when it is out of memory.
  seldom().enter_lane(string.sub(P, 1, -(#lane + 3)) .. ":", lane)
end
local gate = read_gate(P)
call("LLEN", gate.target) -- a key of another type refuses the call here, before any write
local number = 0
if plain > 0 then
  number = call("INCRBY", P .. "id", plain) - plain -- the server refuses this when it is out of memory
end
local events = P .. "events"
local limit = plain > 0 and max_events(P)
local head, tail = {}, {}
local wake, later, stored = false, false, false
-- Whether the groups of the queue take turns, and whether a job was added to one.
local grouped = gate.limits and (gate.base or P) == P and string.find(gate.limits, '"g":', 1, true)
local joined = false
local codes = {}

local function push(command, ids)
  for from = 1, #ids, 5000 do
    call(command, gate.target, unpack(ids, from, math.min(from + 4999, #ids)))
  end
end

local function text_of(fault)
  return type(fault) == "table" and fault.err or tostring(fault)
end

-- Adds a batch of runs. Returns nil, and has changed nothing, if a job of it may need more than these three commands.
local function add_runs()
  if gate.base or grouped or count > 5000 then
    return nil
  end
  local keys, at, last = {}, 5, 0
  while last < count do
    at = at + 4
    local behind = last + ARGV[at - 1]
    for i = last + 1, behind do
      keys[i] = P .. ARGV[at]
      at = at + 2
    end
    last = behind
  end
  if call("EXISTS", unpack(keys)) > 0 then
    return nil
  end
  local index, place, behind, ids = 0, 5, 0, {}
  local name, opts, timestamp
  local function add_rest()
    local at, first = place, index + 1
    for i = first, count do
      if i > behind then
        name, opts, timestamp, behind = ARGV[at], ARGV[at + 1], time_of(ARGV[at + 2]), behind + ARGV[at + 3]
        at = at + 4
      end
      local id = ARGV[at]
      index, at = i, at + 2
      place = at
      call("HSET", keys[i], "name", name, "data", ARGV[at - 1], "opts", opts, "timestamp", timestamp, "delay", "0",
        "priority", "0")
      call("XADD", events, "*", "event", "added", "jobId", id, "name", name)
      if i < count then
        call("XADD", events, "*", "event", "waiting", "jobId", id)
      else
        call("XADD", events, "MAXLEN", "~", limit, "*", "event", "waiting", "jobId", id)
      end
      ids[#ids + 1] = id
    end
  end
  local fine, fault = pcall(add_rest)
  while not fine do -- the job at `index` alone is refused
    codes[index] = text_of(fault)
    call("DEL", keys[index]) -- else a later add of this id would find it and report a duplicate
    fine, fault = pcall(add_rest)
  end
  push("LPUSH", ids)
  if #ids > 0 then
    wake_now(P, gate)
  end
  if #ids == count then
    return { tonumber(server_ms()) }
  end
  for i = 1, count do
    codes[i] = codes[i] or 1
  end
  codes[count + 1] = tonumber(server_ms())
  return codes
end

if runs then
  answer = add_runs()
  if answer then
    return remember(answer)
  end
  local spelled, at, last = { "", "", ARGV[3], "0" }, 5, 0
  while last < count do
    local name, opts, timestamp, behind = ARGV[at], ARGV[at + 1], ARGV[at + 2], last + ARGV[at + 3]
    at = at + 4
    for i = last + 1, behind do
      local to = 9 * i - 4
      spelled[to], spelled[to + 1], spelled[to + 2], spelled[to + 3] = ARGV[at], name, ARGV[at + 1], opts
      spelled[to + 4], spelled[to + 5], spelled[to + 6], spelled[to + 7], spelled[to + 8] = timestamp, "0", "0", "", "0"
      at = at + 2
    end
    last = behind
  end
  ARGV = spelled
end

-- Whether each id must be looked up: usually none of many exists yet. Ids made here are remembered instead.
local look, made = true, {}
if plain == count and count > 1 and count <= 5000 then
  local keys, at = {}, 5
  for i = 1, count do
    keys[i] = P .. ARGV[at]
    at = at + 9 + 2 * tonumber(ARGV[at + 8])
  end
  look = call("EXISTS", unpack(keys)) > 0
end

-- The id of a job without one: its number, or a later one if a client chose that number as an id.
local function number_of(tied)
  local next_id = tied and call("INCR", P .. "id") or number
  while call("EXISTS", P .. string.format("%.0f", next_id)) == 1 do
    next_id = call("INCR", P .. "id")
  end
  return string.format("%.0f", next_id)
end

local function add_one(at, id, last)
  local timestamp = time_of(ARGV[at + 4])
  if made[id] or (look and call("EXISTS", P .. id) == 1)
      or (gate.base and seldom().is_elsewhere(gate.base, P, id)) then
    call("XADD", events, "MAXLEN", "~", limit, "*", "event", "duplicated", "jobId", id)
    return 0
  end
  local extras, group
  local further = tonumber(ARGV[at + 8])
  if further > 0 then
    extras = {}
    for i = 1, 2 * further do
      extras[i] = ARGV[at + 8 + i]
      if extras[i] == "ox:group" and i % 2 == 1 then
        group = ARGV[at + 9 + i]
      end
    end
  end
  local flags = ARGV[at + 7]
  if flags ~= "" and flags ~= "L" then
    local owner = seldom().key_owner(P, id, ARGV[at + 1], flags, extras)
    if owner then
      call("XADD", events, "MAXLEN", "~", limit, "*", "event", "duplicated", "jobId", owner)
      return { owner, 1 }
    end
  end
  local delay, priority = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  stored, made[id] = true, true
  if lane and string.find(ARGV[at + 3], '"jobId"', 1, true) then
    call("HSET", gate.base .. "ox:ids", id, lane)
  end
  store_job(P, id, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], timestamp, ARGV[at + 5], ARGV[at + 6], extras)
  if delay > 0 then
    seldom().insert_delayed(P, id, tonumber(timestamp), delay)
    later = true
    return 1
  end
  if group and not grouped and (gate.base or P) == P then
    gate.limits, grouped = call("HGET", KEYS[1], "ox:limits"), true
  end
  if grouped then
    seldom().join_group(gate, id, group, priority, string.byte(flags) == 76, tonumber(server_ms()))
    joined = true
  elseif priority > 0 then
    seldom().insert_by_priority(P, id, priority)
  elseif string.byte(flags) == 76 then -- L
    tail[#tail + 1] = id
  else
    head[#head + 1] = id
  end
  wake = wake or not joined
  if last then
    call("XADD", events, "MAXLEN", "~", limit, "*", "event", "waiting", "jobId", id)
  else
    call("XADD", events, "*", "event", "waiting", "jobId", id)
  end
  return 1
end

-- Writes all pending plain jobs before a tied job. The tied job may release a parent, which belongs behind them, or
-- remove a delayed job.
local function push_all()
  push("LPUSH", head)
  push("RPUSH", tail)
  head, tail = {}, {}
  if later then
    seldom().wake_later(P)
    later = false
  end
end

local function add_tied_one(at, id)
  push_all()
  local job = seldom().read_tied(at)
  job.counted, job.id = job.id == "", id
  stored = call("EXISTS", P .. job.id) == 0
  return seldom().add_tied(P, gate, job)
end

local at = 5
for i = 1, count do
  stored = false
  local tied = string.byte(ARGV[at + 7]) == 84 -- T
  local id = ARGV[at]
  if not tied then
    number = number + 1
  end
  if id == "" then
    id = number_of(tied)
  end
  local ok, code = pcall(tied and add_tied_one or add_one, at, id, i == count)
  if code == 1 and ARGV[at] == "" then
    code = { id, 2 }
  end
  codes[i] = ok and code or text_of(code)
  if not ok and stored then
    made[id] = nil
    call("DEL", P .. id) -- else a later add of this id would find it and report a duplicate
  end
  at = at + 9 + 2 * tonumber(ARGV[at + 8])
end

push_all()
if joined then
  seldom().tend_groups(gate, tonumber(server_ms()))
end
if wake then
  wake_now(P, gate)
end
codes[count + 1] = tonumber(server_ms())
return remember(codes)
