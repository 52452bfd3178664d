-- Removes a job and its data in any state.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call, 3 id, 4 "1" to remove its children as well, "U" to remove only those jobs
--          below it that have not ended: leased jobs and all below them stay, and so do failed jobs
-- Returns  1 removed, 0 it (or a child) is leased, -1 no such job, -8 the current iteration of a
--          scheduler, -12 too many generations or jobs below it
-- Events   `removed` per job
-- include: base gate insert removal

local answer = remembered()
if answer then
  return answer[1]
end

local only_unprocessed = ARGV[4] == "U"

-- A job with dependencies may have these keys beside its children; they are jobs of their own.
local function own_children(key, found)
  if not peek(key, "ox:depth") then
    return found
  end
  local own = {}
  for _, child in ipairs(found) do
    if peek(child, "parentKey") == key then
      own[#own + 1] = child
    end
  end
  return own
end

local function children_of(key)
  local found = {}
  if not only_unprocessed then
    for _, name in ipairs({ ":processed", ":failed" }) do
      for _, child in ipairs(call("HKEYS", key .. name)) do
        found[#found + 1] = child
      end
    end
    for _, child in ipairs(call("ZRANGE", key .. ":unsuccessful", 0, -1)) do
      found[#found + 1] = child
    end
  end
  for _, child in ipairs(call("SMEMBERS", key .. ":dependencies")) do
    found[#found + 1] = child
  end
  return own_children(key, found)
end

-- Collects the jobs below a job, each with its children before anything was removed. Any client that writes to job
-- hashes can make a job its own ancestor, so each is visited once. A tree that is too large for one call is refused
-- before anything is written: each of its jobs may have to be searched for in a list.
local DEEPEST, MOST = 1000, 2000
local families, known = {}, 0

local function survey(key, depth)
  if families[key] then
    return true
  end
  known = known + 1
  if depth > DEEPEST or known > MOST then
    return false
  end
  families[key] = children_of(key)
  for _, child in ipairs(families[key]) do
    if not survey(child, depth + 1) then
      return false
    end
  end
  return true
end

-- Whether a worker has a lease on it, or on a child that it still waits for.
local asked_about = {}
local function leased(key, deep)
  if asked_about[key] then
    return false
  end
  asked_about[key] = true
  if call("EXISTS", key .. ":lock") == 1 then
    return true
  end
  if deep then
    for _, child in ipairs(own_children(key, call("SMEMBERS", key .. ":dependencies"))) do
      if leased(child, true) then
        return true
      end
    end
  end
  return false
end

-- Searching a list means walking through it, which takes milliseconds if it is long. Jobs that are removed alone are
-- mostly old or young, and so near one of its ends; parents that are released on the way are at its tail. Jobs of a
-- tree are neighbours if they were added together: then the first one shows where the others are. Each is marked in
-- place, so that no index changes, and one walk at the end removes all marks.
local GONE = "ox:gone"
local NEAR = 1000
local alone = ARGV[4] == ""
local places, marked, farthest = {}, {}, {}

-- Returns the index of an id that is not near the tail.
local function find_in(list, id)
  local place = call("LPOS", list, id)
  if place then
    local first = math.max(0, place - 2 * NEAR)
    places[list] = {}
    for i, other in ipairs(call("LRANGE", list, first, place + 2 * NEAR)) do
      places[list][other] = first + i - 1
    end
  end
  return place
end

local function take_from(list, id)
  local place = places[list] and places[list][id]
  -- The lists may have been merged meanwhile, because the queue is paused.
  if not place or call("LINDEX", list, place) ~= id then
    if call("LPOS", list, id, "RANK", -1, "MAXLEN", NEAR) then
      return call("LREM", list, -1, id) == 1
    elseif alone then
      return call("LREM", list, 1, id) == 1
    end
    place = find_in(list, id)
    if not place then
      return false
    end
  end
  call("LSET", list, place, GONE)
  marked[list] = (marked[list] or 0) + 1
  farthest[list] = math.max(farthest[list] or 0, place)
  return true
end

local function drop_marked()
  for list, count in pairs(marked) do
    local from_head = farthest[list] < call("LLEN", list) / 2
    local left = count - call("LREM", list, from_head and count or -count, GONE)
    -- Ids that a merge has moved are in the other list.
    local state = left > 0 and string.match(list, "[^:]*$")
    if state == "wait" or state == "paused" then
      call("LREM", string.sub(list, 1, -#state - 1) .. (state == "wait" and "paused" or "wait"), 0, GONE)
    end
  end
end

-- Removes the id from the state that holds it, and returns the name that peers use for that state in the event.
local function take_out(prefix, id)
  for _, state in ipairs({ "completed", "waiting-children", "delayed", "failed", "prioritized" }) do
    if call("ZREM", prefix .. state, id) == 1 then
      return state
    end
  end
  for _, state in ipairs({ "wait", "paused", "active" }) do
    if take_from(prefix .. state, id) then
      return state
    end
  end
  return "unknown"
end

local removed = {}
local function remove(key, parent_key)
  if removed[key] then
    return
  end
  removed[key] = true
  local prefix, id = split_key(key)
  if prefix .. id == P .. ARGV[3] or key == P .. ARGV[3] then
    prefix, id = P, ARGV[3]
  end
  if only_unprocessed and (call("EXISTS", key .. ":lock") == 1 or call("ZSCORE", prefix .. "failed", id)) then
    return
  end
  if parent_key then
    detach_child(parent_key, key)
  elseif not peek(key, "ox:untold") then -- else its parent cannot be notified of this either
    detach_from_living_parent(key)
  end
  for _, child in ipairs(families[key] or {}) do
    remove(child, key)
  end
  local state = take_out(prefix, id)
  drop_deduplication(prefix, key, id)
  if delete_data(key) > 0 then
    call("XADD", prefix .. "events", "MAXLEN", "~", max_events(prefix), "*",
      "event", "removed", "jobId", id, "prev", state)
  end
end

local id, deep = ARGV[3], ARGV[4] == "1"
local key = P .. id
if only_unprocessed then
  if call("EXISTS", key) == 0 then
    return -1
  end
  if not survey(key, 1) then
    return -12
  end
  removed[key] = true -- also if it is its own descendant
  for _, child in ipairs(families[key]) do
    remove(child, key)
  end
  drop_marked()
  return remember({ 1 })[1]
end
local scheduler = call("HGET", key, "rjk")
if scheduler then
  local slot = call("ZSCORE", P .. "repeat", scheduler)
  if slot and id == "repeat:" .. scheduler .. ":" .. slot then
    return -8
  end
end
if deep and not survey(key, 1) then
  return -12
end
if leased(key, deep) then
  return 0
end
if call("EXISTS", key) == 0 and take_out(P, id) == "unknown" then
  return -1
end
remove(key, nil)
drop_marked()
remember({ 1 })
return 1
