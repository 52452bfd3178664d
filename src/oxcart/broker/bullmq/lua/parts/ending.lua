-- The items of a call that ends attempts: read, taken out of `active`, released.

local events, active_key = P .. "events", P .. "active"
-- How many attempts end, and how many jobs are active: now, and before.
local count, active, at_first = 0, 0, 0

local function count_items(many)
  count, active = many, call("LLEN", active_key)
  at_first = active
end

local sizes = { c = 3, f = 7, r = 4, d = 6, w = 2, h = 2, l = 3 }

-- The keys of the jobs and of their locks, in order: building each has a cost.
local ids, key_of, lock_of = {}, {}, {}
-- The `:dependencies` and `:unsuccessful` keys of completed jobs.
local family = {}

-- For how many minutes to keep counts of ended jobs, or nil.
local minutes

-- Category and code of failed attempts for a pipeline, by item number.
local categories, failure_codes = {}, {}

local function read_items()
  local at, index, last = 14, 0, 0
  while index < count do
    local kind, size = ARGV[at], sizes[ARGV[at]]
    local behind = index + tonumber(ARGV[at + 1])
    at = at + 6
    while index < behind do
      index = index + 1
      local id = ARGV[at]
      local key = P .. id
      ids[index], key_of[index], lock_of[index] = id, key, key .. ":lock"
      if kind == "c" then
        family[last + 1], family[last + 2] = key .. ":dependencies", key .. ":unsuccessful"
        last = last + 2
      end
      at = at + size
    end
  end
  minutes = ARGV[at] and tonumber(ARGV[at])
  for i = at + 1, #ARGV - 2, 3 do
    if ARGV[i] == "0" then
      VERSION = ARGV[i + 1]
    end
    categories[tonumber(ARGV[i])], failure_codes[tonumber(ARGV[i])] = ARGV[i + 1], ARGV[i + 2]
  end
end

-- Data that all items need is read before them and written after them, in one command instead of one per item: the
-- leases, and the places of finished jobs.
local holders = {}
local released, released_ids, released_locks = {}, {}, {}
local places = { completed = {}, failed = {} }

-- Whether any job that completes here might have children: usually none has.
local children
-- Whether all jobs exist: usually they do. A single job is checked by itself.
local all_there

local function read_leases()
  -- Keys of another type refuse the call here, before anything is written.
  call("ZCARD", P .. "completed")
  call("ZCARD", P .. "failed")
  if count > 0 then
    holders = call("MGET", unpack(lock_of))
    all_there = count > 1 and call("EXISTS", unpack(key_of)) == count
  end
  children = #family > 0 and call("EXISTS", unpack(family)) > 0
end

local function release(index, id)
  released[id] = true
  local last = #released_ids + 1
  released_ids[last], released_locks[last] = id, lock_of[index]
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
    call("DEL", unpack(released_locks))
    if call("EXISTS", P .. "stalled") == 1 then
      call("SREM", P .. "stalled", unpack(released_ids))
    end
  end
end

-- Jobs mostly end in the order in which they were claimed, and so are neighbours in `active`: then they
-- are removed together, before anything reads the list again. Otherwise each one costs a search and a
-- command. `run_end` is the index of the first; nil if they are removed one by one.
local run_end
local left, leaving = {}, 0

local function find_run()
  if count < 4 then
    return
  end
  -- Not far from the tail, because everything behind the run is written again.
  local place = call("LPOS", active_key, ids[1], "RANK", -1, "MAXLEN", 4 * count)
  if not place or place < count - 1 then
    return
  end
  local run = call("LRANGE", active_key, place - count + 1, place)
  for i = 1, count do
    if run[count + 1 - i] ~= ids[i] then
      return
    end
  end
  run_end = place
end

-- Cuts the list off before the run, and appends what stays: of the run, and of the entries before it.
local function write_active()
  if leaving == 0 then
    return
  end
  local stay = {}
  if leaving < count then
    for i = count, 1, -1 do
      if not left[i] then
        stay[#stay + 1] = ids[i]
      end
    end
  end
  local older = run_end + 1 < at_first and call("LRANGE", active_key, run_end + 1, -1) or {}
  for i = 1, #older do
    stay[#stay + 1] = older[i]
  end
  if run_end >= count then
    call("LTRIM", active_key, 0, run_end - count)
  else
    call("DEL", active_key)
  end
  for i = 1, #stay, 1000 do
    call("RPUSH", active_key, unpack(stay, i, math.min(i + 999, #stay)))
  end
  leaving, run_end = 0, nil
end
unwritten.active = write_active

-- In a long list a search from the wrong end is slow. The list is ordered by start: a job that started before
-- the middle of the list's age is nearer to the tail.
local middle
local function from_end(key, now)
  if active < 200 then
    return -1
  end
  if not middle then
    local oldest = call("LINDEX", active_key, -1)
    local since = oldest and tonumber(peek(P .. oldest, "processedOn")) or now
    middle = since + (now - since) / 2
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

-- A parent in another slot of a cluster, or one that cannot be read, cannot be notified. Its child ends all
-- the same: if each end were refused, it would run again and again. Its hash stores the reason.
local function find_parent(job, key)
  local ok, fault = pcall(read_parent, job, key)
  if not ok then
    job[1] = nil
    job.untold = type(fault) == "table" and fault.err or tostring(fault)
  end
end
