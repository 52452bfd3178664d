-- Ends attempts, and claims new jobs into the freed slots.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3-10 as in claim (4 may be 0: claim nothing)
--          11 how many attempts end here; then for each:
--          kind, id, token, starts ("" or the `ats` of the claim), time, and by kind
--          c completed  value, retention
--          f failed     reason, stacktrace, retention, attempts allowed, category or ""
--          r retry now  reason, stacktrace, "L" or ""
--          d delay      reason or "", stacktrace, delay, "1" when the attempt does not count
--          w give back  (nothing)
--          h wait for its children  (nothing)
--          l give back  how many ms the queue is held: its rate limit lets no job start
--          retention is "" to keep all, or "count:age:limit" with empty parts for what is not asked;
--          behind the last of them for how many minutes to keep counts of ended jobs, or nothing
-- Returns  { codes, jobs, limited, due, closed, active, orphans, repeated } as claim; one code per item: 1, 2 as 1
--          but its parent could not be told, 0 it has no children to wait for (nothing changed), or
--          -1 no such job, -2 no lease, -3 not active, -4 children pending, -6 lease of somebody else,
--          -9 a child failed, or an error text where the server refused that item alone
-- Events   `completed`; `failed`, `retries-exhausted`; `waiting`; `delayed`; `waiting-children`; then those of claim;
--          `drained` when nothing is left to do
-- Keeps    an item that is refused changes nothing for its neighbours. A lease that ran out may still end
--          its attempt while the job is active and nobody else started it (same `ats`).
-- include: base gate insert store parent removal deduplication metrics claiming

local asked = read_asked(3)
local kept = remembered()
if kept then
  return repeat_claim(kept, asked)
end

local events, active_key = P .. "events", P .. "active"
local count = tonumber(ARGV[11])
if count > MOST then
  error({ err = "ERR at most " .. MOST .. " attempts end in one call" }) -- Lua unpacks about 8000 values
end
local codes = {}
local active = call("LLEN", active_key)
local finished, trimmed, purge = 0, false, 1000
local sizes = { c = 2, f = 5, r = 3, d = 4, w = 0, h = 0, l = 1 }

-- What all items need alike is read before them and written behind them, in one command instead of one
-- per item: the leases, and the places of finished jobs.
local holders = {}
local released, released_ids = {}, {}
local places = { completed = {}, failed = {} }

-- Whether any job that completes here might have children: nearly always none has.
local children

local minutes

local function read_leases()
  -- Sets that are none refuse the call here, before anything is written.
  call("ZCARD", P .. "completed")
  call("ZCARD", P .. "failed")
  local keys, parents, at = {}, {}, 12
  for i = 1, count do
    local key = P .. ARGV[at + 1]
    keys[i] = key .. ":lock"
    if ARGV[at] == "c" then
      parents[#parents + 1] = key .. ":dependencies"
      parents[#parents + 1] = key .. ":unsuccessful"
    end
    at = at + 5 + sizes[ARGV[at]]
  end
  minutes = ARGV[at] and tonumber(ARGV[at])
  if count > 0 then
    holders = call("MGET", unpack(keys))
  end
  children = #parents > 0 and call("EXISTS", unpack(parents)) > 0
end

local function release(id)
  released[id] = true
  released_ids[#released_ids + 1] = id
end

local function write_places()
  for set, pairs_of in pairs(places) do
    if #pairs_of > 0 then
      call("ZADD", P .. set, unpack(pairs_of))
      places[set] = {}
    end
  end
end

local function write_releases()
  if #released_ids > 0 then
    local locks = {}
    for i, id in ipairs(released_ids) do
      locks[i] = P .. id .. ":lock"
    end
    call("DEL", unpack(locks))
    if call("EXISTS", P .. "stalled") == 1 then
      call("SREM", P .. "stalled", unpack(released_ids))
    end
  end
end

-- In a long list a search from the wrong end is slow. The list is ordered by start: what started before
-- the middle of the list's age is nearer to the tail.
local middle
local function from_end(key)
  if active < 200 then
    return -1
  end
  if not middle then
    local oldest = call("LINDEX", active_key, -1)
    local since = oldest and tonumber(peek(P .. oldest, "processedOn")) or asked.now
    middle = since + (asked.now - since) / 2
  end
  return (tonumber(call("HGET", key, "processedOn")) or 0) > middle and 1 or -1
end

-- Reads what the end of a child will change in its parent, before anything is written.
local function read_parent(job, key)
  call("SCARD", job[1] .. ":dependencies")
  local parent = call("HGET", key, "parent")
  if parent then
    parent = cjson.decode(parent)
    local prefix = parent.queueKey .. ":"
    call("SCARD", prefix .. parent.id .. ":dependencies")
    call("ZCARD", prefix .. "waiting-children")
    job.parent = parent
  end
end

-- A parent in another slot of a cluster, or one that cannot be read, cannot be told. Its child ends all the
-- same: refused at every end, it would run again and again. Its hash says why the parent was not told.
local function find_parent(job, key)
  local ok, fault = pcall(read_parent, job, key)
  if not ok then
    job[1] = nil
    job.untold = type(fault) == "table" and fault.err or tostring(fault)
  end
end

-- The id that has left `active` and is not yet elsewhere: what fails in between puts it back.
local between

-- Common beginning of every item. Returns the job's attributes, or a code below zero. The order of the
-- checks is the peers': what a refused call has already changed by then is the same.
local function leave(index, kind, id, token, starts, fields)
  local key = P .. id
  local job = call("HMGET", key, "parentKey", "deid", "atm", "ats")
  if not job[4] and call("EXISTS", key) == 0 then
    return -1
  end
  if children and kind == "c" and call("EXISTS", key .. ":dependencies", key .. ":unsuccessful") > 0 then
    return call("EXISTS", key .. ":dependencies") == 1 and -4 or -9
  end
  local holder = not released[id] and holders[index]
  if holder and holder ~= token then
    return -6
  end
  if not holder and (starts == "" or starts ~= job[4] or not call("LPOS", active_key, id)) then
    return -2
  end
  if (kind == "c" or kind == "f") and job[1] and job[1] ~= "" then
    find_parent(job, key)
  end
  release(id)
  if fields then
    call("HSET", key, unpack(fields))
  end
  if call("LREM", active_key, from_end(key), id) == 0 then
    return -3
  end
  active = active - 1
  between = id
  return job
end

-- Keeps finished jobs within what was asked for; at most `purge` removals in one call.
local function retain(set, wanted, time)
  write_places()
  local most, age, limit = string.match(wanted, "^([^:]*):([^:]*):([^:]*)$")
  if age ~= "" then
    local before = string.format("%.0f", time - tonumber(age) * 1000)
    local old = call("ZRANGEBYSCORE", set, "-inf", before, "LIMIT", 0,
      (tonumber(limit) or -1) >= 0 and math.min(tonumber(limit), purge) or purge)
    if #old > 0 then
      purge = purge - #old
      forget_jobs(P, old)
      call("ZREM", set, unpack(old))
    end
  end
  most = tonumber(most)
  if most and most > 0 then
    local surplus = math.min(call("ZCARD", set) - most, purge)
    if surplus > 0 then
      purge = purge - surplus
      local old = call("ZRANGE", set, 0, surplus - 1)
      forget_jobs(P, old)
      call("ZREM", set, unpack(old))
    end
  end
end

local function drained()
  if call("LLEN", P .. "wait") == 0 and call("LLEN", active_key) == 0 and call("ZCARD", P .. "prioritized") == 0 then
    call("XADD", events, "*", "event", "drained")
  end
end

-- The end of a job: `field` holds `value`, the job goes to `set` unless it is not to be kept.
local function settle_job(job, id, time, set, field, value, wanted, category)
  if not trimmed then
    trimmed = true
    trim_events()
  end
  local key, now = P .. id, tonumber(time)
  if job[2] then
    close_window(P, job[2], id, now)
    children = true -- a kept job may have become the child of one that ends further down
  end
  local parent_key = job[1]
  if parent_key and parent_key ~= "" then
    local parent = job.parent
    if set == "failed" then
      if parent then
        child_failed(parent, key, value, now)
      end
    elseif parent then
      child_completed(parent_key, parent.queueKey .. ":", parent.id, key, value, now)
    else
      local prefix, parent_id = split_key(parent_key)
      child_completed(parent_key, prefix, parent_id, key, value, now)
    end
  end
  local ended = (tonumber(job[3]) or 0) + 1
  if string.sub(wanted, 1, 2) == "0:" then
    delete_data(key)
    between = nil
    if parent_key and parent_key ~= "" then
      detach_child(parent_key, key)
    end
  else
    local place = places[set]
    place[#place + 1] = time
    place[#place + 1] = id
    between = nil
    if category and category ~= "" then
      call("HSET", key, "atm", ended, field, value, "finishedOn", time, "ox:category", category)
    else
      call("HSET", key, "atm", ended, field, value, "finishedOn", time)
    end
    if set == "failed" then
      call("HDEL", key, "defa")
    end
    if job.untold then
      call("HSET", key, "ox:untold", job.untold)
    end
    if wanted ~= "" then
      retain(P .. set, wanted, now)
    end
  end
  call("XADD", events, "*", "event", set, "jobId", id, field, value, "prev", "active")
  if minutes then
    count_end(set, now, minutes)
  end
  finished = finished + 1
  return ended
end

local function end_of_item(job)
  if asked.count == 0 and active == 0 then
    drained()
  end
  return job.untold and 2 or 1
end

local function priority_of(id)
  return tonumber(call("HGET", P .. id, "priority")) or 0
end

local kinds = {}

function kinds.c(index, at, id, token, starts, time)
  local job = leave(index, "c", id, token, starts)
  if type(job) == "number" then
    return job
  end
  settle_job(job, id, time, "completed", "returnvalue", ARGV[at], ARGV[at + 1])
  return end_of_item(job)
end

function kinds.f(index, at, id, token, starts, time)
  local job = leave(index, "f", id, token, starts, { "failedReason", ARGV[at], "stacktrace", ARGV[at + 1] })
  if type(job) == "number" then
    return job
  end
  local ended = settle_job(job, id, time, "failed", "failedReason", ARGV[at], ARGV[at + 2], ARGV[at + 4])
  if ended >= tonumber(ARGV[at + 3]) then
    call("XADD", events, "*", "event", "retries-exhausted", "jobId", id, "attemptsMade", ended)
  end
  return end_of_item(job)
end

function kinds.r(index, at, id, token, starts, time)
  promote_due(P, read_gate(P), tonumber(time), PROMOTE)
  local job = leave(index, "r", id, token, starts, { "failedReason", ARGV[at], "stacktrace", ARGV[at + 1] })
  if type(job) == "number" then
    return job
  end
  call("HINCRBY", P .. id, "atm", 1)
  insert_waiting(P, read_gate(P), id, priority_of(id), ARGV[at + 2] == "L")
  call("XADD", events, "MAXLEN", "~", max_events(P), "*", "event", "waiting", "jobId", id, "prev", "active")
  return 1
end

function kinds.d(index, at, id, token, starts, time)
  local fields
  if ARGV[at] ~= "" or ARGV[at + 1] ~= "" then
    fields = { "failedReason", ARGV[at], "stacktrace", ARGV[at + 1] }
  end
  local job = leave(index, "d", id, token, starts, fields)
  if type(job) == "number" then
    return job
  end
  if ARGV[at + 3] ~= "1" then
    call("HINCRBY", P .. id, "atm", 1)
  end
  call("HSET", P .. id, "delay", ARGV[at + 2])
  insert_delayed(P, id, tonumber(time), tonumber(ARGV[at + 2]))
  wake_later(P)
  return 1
end

function kinds.w(index, at, id, token, starts)
  local job = leave(index, "w", id, token, starts)
  if type(job) == "number" then
    return job
  end
  insert_front(P, read_gate(P), id, priority_of(id))
  call("XADD", events, "MAXLEN", "~", max_events(P), "*", "event", "waiting", "jobId", id, "prev", "active")
  return 1
end

function kinds.h(index, at, id, token, starts, time)
  local key = P .. id
  if call("EXISTS", key) == 0 then
    return -1
  elseif call("ZCARD", key .. ":unsuccessful") > 0 then
    return -9
  elseif call("SCARD", key .. ":dependencies") == 0 then
    return 0
  end
  local job = leave(index, "h", id, token, starts)
  if type(job) == "number" then
    return job
  end
  call("ZADD", P .. "waiting-children", time, id)
  between = nil
  call("XADD", events, "*", "event", "waiting-children", "jobId", id, "prev", "active")
  return 1
end

-- What made it give the job back is true of the whole queue, whoever holds the job by now.
function kinds.l(index, at, id, token, starts)
  call("SET", P .. "limiter", string.format("%.0f", HELD), "PX", ARGV[at])
  return kinds.w(index, at, id, token, starts)
end

read_leases()
local at = 12
for i = 1, count do
  local kind = ARGV[at]
  local ok, code = pcall(kinds[kind], i, at + 5, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4])
  codes[i] = ok and code or (type(code) == "table" and code.err or tostring(code))
  -- What is put back has no lease: the stalled check gives it to another worker.
  if not ok and between and put_back(P, between) then
    active = active + 1
  end
  between = nil
  at = at + 5 + sizes[kind]
end
write_places()
write_releases()
if minutes then
  write_counts(minutes)
end

if asked.count == 0 then
  return answer_claim(codes, { jobs = {}, orphans = {}, limited = 0, count = 0 })
end
local claim = claim_jobs(asked)
if finished > 0 and claim.count == 0 and not claim.due then
  drained()
end
return answer_claim(codes, claim)
