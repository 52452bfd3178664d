-- The three ways for a job to wait: in the ready list, by priority, or delayed.

local TICK = 4096          -- delayed scores are milliseconds times this, the rest keeps arrival order
local BAND = 4294967296    -- priority scores are the priority times this plus a running counter

-- Member `0` of the marker wakes a blocked worker now, member `1` at its score as a time.
local function wake_now(prefix, gate)
  if not gate.closed then
    call("ZADD", prefix .. "marker", 0, "0")
  end
end

-- Returns the ms at which the next delayed job is due, or nil; a fraction carries the arrival order.
local function next_due(prefix)
  local first = call("ZRANGE", prefix .. "delayed", 0, 0, "WITHSCORES")
  return first[2] and tonumber(first[2]) / TICK
end

local function wake_later(prefix)
  local due = next_due(prefix)
  if due then
    call("ZADD", prefix .. "marker", due, "1")
  end
end

local function insert_ready(prefix, gate, id, front)
  call(front and "RPUSH" or "LPUSH", gate.target, id)
  wake_now(prefix, gate)
end

local function insert_by_priority(prefix, id, priority)
  local turn = call("INCR", prefix .. "pc")
  call("ZADD", prefix .. "prioritized", priority * BAND + turn % BAND, id)
end

-- Inserts by priority: into the ready list for 0, else into the sorted set.
local function insert_waiting(prefix, gate, id, priority, front)
  if priority == 0 then
    insert_ready(prefix, gate, id, front)
  else
    insert_by_priority(prefix, id, priority)
    wake_now(prefix, gate)
  end
end

-- Inserts in front of all others of its priority. Peers add no marker in the sorted set, so neither do we.
local function insert_front(prefix, gate, id, priority)
  if priority > 0 then
    call("ZADD", prefix .. "prioritized", priority * BAND, id)
  else
    insert_ready(prefix, gate, id, true)
  end
end

-- Returns the score for a job due `delay` ms after `now`, and the due time.
local function delayed_score(prefix, now, delay)
  local due = delay > 0 and now + delay or now
  local low = due * TICK
  local high = low + TICK - 1
  local last = call("ZREVRANGEBYSCORE", prefix .. "delayed", high, low, "WITHSCORES", "LIMIT", 0, 1)
  if last[2] then
    low = math.min(tonumber(last[2]) + 1, high)
  end
  return low, due
end

-- The caller wakes later workers once, after its last job. Returns the id of the event.
local function insert_delayed(prefix, id, now, delay)
  local score, due = delayed_score(prefix, now, delay)
  call("ZADD", prefix .. "delayed", score, id)
  return call("XADD", prefix .. "events", "MAXLEN", "~", max_events(prefix), "*",
    "event", "delayed", "jobId", id, "delay", string.format("%.0f", due))
end

-- Returns whether a job waits for a worker. Called after a partial failure, so a key of a wrong type is no error.
local function is_ready(prefix, id)
  for place, command in pairs({ prioritized = "ZSCORE", wait = "LPOS", paused = "LPOS" }) do
    local found = redis.pcall(command, prefix .. place, id)
    if found and type(found) ~= "table" then
      return true
    end
  end
  return false
end

-- Puts an id back into `active` that left it but did not reach its new place.
local function put_back(prefix, id)
  local delayed = redis.pcall("ZSCORE", prefix .. "delayed", id)
  if is_ready(prefix, id) or type(delayed) == "string" then
    return false
  end
  call("RPUSH", prefix .. "active", id)
  return true
end

-- `groups`: creates the functions of parts/groups.lua, in scripts that may promote jobs of groups.
local promoting = {}

-- Promotes one due job; `stamp` is the time to record. An id without a job is dropped. Returns true if the job stays in
-- `delayed`, because it now waits for its group's turn: in `wait` a peer would start it in excess of the group's limit.
-- Returns "kept" if it waited for that before: it became ready then, not now.
local function promote_one(prefix, gate, id, stamp, from)
  local key = prefix .. id
  local known = redis.pcall("HMGET", key, "priority", "ox:history", "atm", "delay", "attemptsMade")
  local priority = known[1]
  if not priority and call("TYPE", key).ok ~= "hash" then
    return
  end
  local stays = gate.limits and prefix == P and promoting.groups and promoting.groups().park_promoted(gate, id, stamp, from)
  if stays == "kept" then
    return stays
  end
  priority = tonumber(priority) or 0
  if not stays and (priority == 0 or priority ~= priority) then
    call("LPUSH", gate.target, id)
  elseif not stays then
    insert_by_priority(prefix, id, priority)
  end
  call("XADD", prefix .. "events", "*", "event", "waiting", "jobId", id, "prev", "delayed")
  if known[2] and not is_held_back(key, known[2], known[4]) then
    local retries = attempts_made(known[3], known[5]) > 0
    call("HSET", key, "delay", 0, "ox:ready", stamp, "ox:history", noted(known[2], stamp,
      retries and "retrying" or "delayed", "scheduled", "",
      retries and "the backoff has passed" or "the delay has passed"))
  else
    call("HSET", key, "delay", 0, "ox:ready", stamp)
  end
  return stays
end

-- From this many ready jobs on, fewer due jobs are promoted.
local PLENTY = 500

-- Promotes at most `most` due jobs, or `few` if plenty is ready. `stamp` is the time to record, if it is not `now`.
-- Returns how many it moved. A job that cannot be moved stays, and does not stop the others.
-- `from` is for a caller that promotes jobs before they are due: it passes those by that wait for their group's turn. It
-- is a score and how many jobs of that score to pass by; the call changes both to where the next one continues, and
-- the score to "" behind the last job.
local function promote_due(prefix, gate, now, most, few, stamp, from)
  local last_score = string.format("%.0f", (now + 1) * TICK - 1)
  local due = call("ZRANGEBYSCORE", prefix .. "delayed", from and from[1] or 0, last_score, "LIMIT", from and from[2] or 0,
    most)
  local ended = #due < most
  if #due == 0 then
    if from then
      from[1] = ""
    end
    return 0
  end
  local last = #due
  if few and last > few and call("LLEN", prefix .. "wait") >= PLENTY then
    last = few
  end
  local gone, parked = {}, 0
  stamp = stamp or string.format("%.0f", now)
  for i = 1, last do
    local id = due[i]
    local score = from and call("ZSCORE", prefix .. "delayed", id)
    local fine, stays = pcall(promote_one, prefix, gate, id, stamp, from)
    if from and score then
      if score ~= from[1] then
        from[1], from[2] = score, 0
      end
      if not fine or stays == "kept" then
        from[2] = from[2] + 1
      end
    end
    if fine and stays and not (from and stays == "kept") then
      parked = parked + 1
    elseif fine and not stays or is_ready(prefix, id) then
      gone[#gone + 1] = id
    end
  end
  if #gone > 0 then
    call("ZREM", prefix .. "delayed", unpack(gone))
    wake_now(prefix, gate)
  end
  if parked > 0 then
    promoting.groups().tend_groups(gate, now)
  end
  if from and ended then
    from[1] = ""
  end
  return #gone + parked
end
