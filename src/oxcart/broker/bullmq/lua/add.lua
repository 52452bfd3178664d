-- Adds jobs: to the ready list, by priority, or delayed.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call
--          3 how many jobs; then for each:
--          id, name, data, opts, timestamp, delay, priority, "L" for last-in-first-out or "",
--          number of further hash fields, and these as field, value
-- Returns  a list with one code per job: 1 added, 0 the id exists already (nothing changed),
--          or an error text where the server refused that job alone
-- Events   per job `added` and then `waiting` or `delayed`; `duplicated` for an id that exists
-- Keeps    the counter `id` grows by one per job, as peers expect, although ids come from the caller
-- include: base gate insert store

local answer = remembered(true)
if answer then
  return answer
end

local count = tonumber(ARGV[3])
local gate = read_gate(P)
call("LLEN", gate.target) -- a list that is none refuses the call here, before anything is written
call("INCRBY", P .. "id", count) -- refused when the server is out of memory
local events = P .. "events"
local limit = max_events(P)
local head, tail = {}, {}
local wake, later, stored = false, false, false
local codes = {}

local function add_one(at, last)
  local id, timestamp = ARGV[at], ARGV[at + 4]
  if call("EXISTS", P .. id) == 1 then
    call("XADD", events, "MAXLEN", "~", limit, "*", "event", "duplicated", "jobId", id)
    return 0
  end
  local extras
  local further = tonumber(ARGV[at + 8])
  if further > 0 then
    extras = {}
    for i = 1, 2 * further do
      extras[i] = ARGV[at + 8 + i]
    end
  end
  local delay, priority = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  stored = true
  store_job(P, id, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], timestamp, ARGV[at + 5], ARGV[at + 6], extras)
  if delay > 0 then
    insert_delayed(P, id, tonumber(timestamp), delay)
    later = true
    return 1
  end
  if priority > 0 then
    insert_by_priority(P, id, priority)
  elseif ARGV[at + 7] == "L" then
    tail[#tail + 1] = id
  else
    head[#head + 1] = id
  end
  wake = true
  if last then
    call("XADD", events, "MAXLEN", "~", limit, "*", "event", "waiting", "jobId", id)
  else
    call("XADD", events, "*", "event", "waiting", "jobId", id)
  end
  return 1
end

local at = 4
for i = 1, count do
  stored = false
  local ok, code = pcall(add_one, at, i == count)
  codes[i] = ok and code or (type(code) == "table" and code.err or tostring(code))
  if not ok and stored then
    call("DEL", P .. ARGV[at]) -- else a later add of this id would take it for added
  end
  at = at + 9 + 2 * tonumber(ARGV[at + 8])
end

local function push(command, ids)
  for from = 1, #ids, 5000 do
    call(command, gate.target, unpack(ids, from, math.min(from + 4999, #ids)))
  end
end
push("LPUSH", head)
push("RPUSH", tail)
if wake then
  wake_now(P, gate)
end
if later then
  wake_later(P)
end
return remember(codes)
