-- Adds one job that is tied to others: to a parent, to a deduplication window, or to children it waits for.
--
-- A job is a table: `id`, `name`, `data`, `opts`, `timestamp`, `delay`, `priority`, `extras` (a flat list of
-- further fields and values; `parentKey` and `parent` are among them for a child), `lifo`, `window` (its
-- options name it) and `waits` (for children that are added next). A caller that adds many jobs passes what it has
-- already checked: `exists` (a job of this id exists), `has_parent` (the parent exists) and `counted` (in the
-- counter `id`).

-- Reads the job whose arguments begin at `at`: id, name, data, opts, timestamp, delay, priority, flags,
-- number of further fields, and these. Flags: T tied, L last-in-first-out, D has a window, P waits for
-- children. Also returns where the next one begins.
local function read_tied(at)
  local extras, further = {}, tonumber(ARGV[at + 8])
  local flags = ARGV[at + 7]
  local job = {
    id = ARGV[at], name = ARGV[at + 1], data = ARGV[at + 2], opts = ARGV[at + 3], timestamp = time_of(ARGV[at + 4]),
    delay = tonumber(ARGV[at + 5]), priority = tonumber(ARGV[at + 6]), extras = extras,
    lifo = string.find(flags, "L", 1, true) ~= nil,
    window = string.find(flags, "D", 1, true) ~= nil,
    waits = string.find(flags, "P", 1, true) ~= nil,
  }
  for i = 1, 2 * further do
    extras[i] = ARGV[at + 8 + i]
  end
  for i = 1, 2 * further, 2 do
    if extras[i] == "parentKey" then
      job.parent_key = extras[i + 1]
    elseif extras[i] == "parent" then
      job.parent = extras[i + 1]
    end
  end
  return job, at + 9 + 2 * further
end

-- Returns why an existing job cannot become the parent's child, or nil: -7 it belongs to another parent that still
-- exists, -13 it is above that parent, so each would wait for the other.
local GENERATIONS = 100
local function is_taken(prefix, job)
  local key = prefix .. job.id
  if job.exists == nil then
    job.exists = call("EXISTS", key) == 1
  end
  local known = job.exists and call("HGET", key, "parentKey") -- a key that is no job refuses the call here
  if not job.parent_key or not job.exists then
    return nil
  end
  local above = job.parent_key
  for _ = 1, GENERATIONS do
    if above == key then
      return -13
    end
    above = call("HGET", above, "parentKey")
    if not above or above == "" then
      break
    end
  end
  if known and known ~= job.parent_key and call("EXISTS", known) == 1 then
    return -7
  end
  return nil
end

-- Makes an existing job the parent's child. A completed job becomes a value at once. That may release the parent: at
-- once, or through `later` if the caller adds more children to it.
local function adopt(prefix, job, later)
  local key = prefix .. job.id
  local taken = is_taken(prefix, job)
  if taken then
    return taken
  end
  if job.parent_key then
    if call("ZSCORE", prefix .. "completed", job.id) then
      call("HSET", job.parent_key .. ":processed", key, call("HGET", key, "returnvalue") or "null")
      local above = cjson.decode(job.parent)
      if later then
        later[#later + 1] = { above.queueKey .. ":", above.id, tonumber(job.timestamp) }
      else
        release_if_childless(above.queueKey .. ":", above.id, tonumber(job.timestamp))
      end
    else
      call("SADD", job.parent_key .. ":dependencies", key)
    end
    call("HSET", key, "parentKey", job.parent_key, "parent", job.parent)
  end
  call("XADD", prefix .. "events", "MAXLEN", "~", max_events(prefix), "*", "event", "duplicated", "jobId", job.id)
  return 0
end

-- Returns 1 added, 0 the id exists, -5 no parent, -7 or -13 it cannot be the parent's child, or { owner } if
-- a deduplication window kept it out.
local function add_tied(prefix, gate, job, later)
  if job.parent_key and not job.has_parent and call("EXISTS", job.parent_key) == 0 then
    return -5
  end
  if not job.counted then
    call("INCR", prefix .. "id")
  end
  local limit, events, id = max_events(prefix), prefix .. "events", job.id
  if job.exists or (job.exists == nil and call("EXISTS", prefix .. id) == 1) then
    return adopt(prefix, job, later)
  end
  if job.window then
    local owner = enter_window(prefix, cjson.decode(job.opts).de, job)
    if owner then
      return { owner }
    end
  end
  store_job(prefix, id, job.name, job.data, job.opts, job.timestamp, job.delay, job.priority, job.extras)
  if job.waits then
    call("ZADD", prefix .. "waiting-children", job.timestamp, id)
    call("XADD", events, "MAXLEN", "~", limit, "*", "event", "waiting-children", "jobId", id)
  elseif job.delay > 0 then
    insert_delayed(prefix, id, tonumber(job.timestamp), job.delay)
    wake_later(prefix)
  else
    insert_waiting(prefix, gate, id, job.priority, job.lifo)
    call("XADD", events, "MAXLEN", "~", limit, "*", "event", "waiting", "jobId", id)
  end
  if job.parent_key then
    call("SADD", job.parent_key .. ":dependencies", prefix .. id)
  end
  return 1
end
