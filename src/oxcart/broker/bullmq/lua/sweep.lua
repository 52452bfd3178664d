-- Removes jobs of one state: one step of clean, drain and obliterate.
--
-- KEYS[1]  meta
-- ARGV     1 slot, 2 number of the call
--          3 state: wait, paused, active, prioritized, delayed, waiting-children, completed or failed
--          4 time in ms: only jobs from before it, "" for all
--          5 how many jobs to look at; with a time in 4 the call first passes young jobs, for at most a ms
--          6 how many jobs to skip, which earlier steps left
--          7 "1" to remove also leased jobs and the next runs of schedulers
--          8 how many jobs earlier steps removed without an event, "" to write no event
--          9 how many jobs may be removed, "" for all; at least as many as are looked at
--          10 "1" to return the ids of removed jobs
-- Returns  { how many were removed, how many were left, 1 while there may be more, 1 when an event was written,
--          microseconds of server time that the jobs took which it looked at for removal, 0 without a CPU clock,
--          the ids of removed jobs, if argument 10 is set }
-- Events   `cleaned`, for every 10 000 jobs and at the end, if requested
-- Keeps    the order of the remaining jobs. Steps go through a list from its oldest end, and within a step from the
--          newest job, as peers do: parents are released in that order
-- include: base gate insert removal sweeping timing

local answer = remembered()
if answer then
  return answer
end

local REPORT = 10000
local GONE = "ox:gone"

local state, key = ARGV[3], P .. ARGV[3]
local cutoff = tonumber(ARGV[4])
local step, left = tonumber(ARGV[5]), tonumber(ARGV[6])
local all = ARGV[7] == "1"
local is_list = state == "wait" or state == "paused" or state == "active"
local has_ended = state == "completed" or state == "failed"

local function next_ids()
  if is_list then
    return call("LRANGE", key, -(left + step), -(left + 1))
  elseif has_ended and cutoff then
    return call("ZRANGEBYSCORE", key, "-inf", ARGV[4], "LIMIT", left, step)
  end
  return call("ZRANGE", key, left, left + step - 1)
end

-- Returns when a job was last touched. A job without any time counts as old.
local function is_old(job)
  if not cutoff or has_ended then
    return true
  end
  local at = job[6]
  if state == "delayed" then
    at = job[5] or at
  elseif is_list then
    at = job[4] or job[5] or at
  end
  if not at then
    return true
  end
  at = tonumber(at)
  return at ~= nil and at <= cutoff
end

local function all_are_young(some)
  for _, id in ipairs(some) do
    local at = call("HMGET", P .. id, "finishedOn", "processedOn", "timestamp")
    if is_old({ nil, nil, nil, at[1], at[2], at[3] }) then
      return false
    end
  end
  return true
end

-- A call that removes nothing goes on: without this, a million young jobs take thousands of calls.
local ids, passed, is_over = next_ids(), 0, false
if began and cutoff and not has_ended then
  while #ids > 0 and not is_over and all_are_young(ids) do
    passed = passed + #ids
    left = left + #ids
    is_over = #ids == step and not is_short()
    ids = #ids == step and not is_over and next_ids() or {}
  end
  if passed > 0 then
    began = os.clock()
  end
end

local function sweep_one(id)
  local job = call("HMGET", P .. id, "parentKey", "deid", "rjk", "finishedOn", "processedOn", "timestamp")
  if not is_old(job) then
    return false
  end
  if all then
    if state == "active" then
      call("UNLINK", P .. id .. ":lock")
    end
  elseif state == "active" and call("EXISTS", P .. id .. ":lock") == 1 then
    return false
  elseif not has_ended and is_next_run(id, job[3]) then
    return false
  end
  sweep_job(id, job[1], job[2])
  return true
end

-- Beyond this many remaining jobs at the end of a list, removed jobs are first marked in place. Each mark needs a walk
-- to its index, so a step then removes few.
local SHALLOW, FEW = 1000, 50
local deep = is_list and left > SHALLOW

local gone, kept, places = {}, {}, {}
local function look(i)
  local id = ids[i]
  -- An entry whose parent is in another slot, or that is no job at all, stays and does not stop the others. If the
  -- whole state goes, it goes too, as far as it can be reached.
  local fine, removed = pcall(sweep_one, id)
  if not fine and all then
    removed = pcall(sweep_data, P .. id)
  end
  if (fine or all) and removed then
    gone[#gone + 1] = id
    places[#places + 1] = i
  else
    kept[#kept + 1] = id
  end
end
if deep then
  for i = #ids, 1, -1 do
    if #gone < FEW then
      look(i)
    end
  end
else
  for i = 1, #ids do
    look(i)
  end
end

if #gone > 0 then
  if not is_list then
    call("ZREM", key, unpack(gone))
  elseif not deep then
    local rest = left > 0 and call("LRANGE", key, -left, -1) or {}
    call("LTRIM", key, 0, -(#ids + left + 1))
    if #kept > 0 then
      call("RPUSH", key, unpack(kept))
    end
    if #rest > 0 then
      call("RPUSH", key, unpack(rest))
    end
  else
    for _, i in ipairs(places) do
      call("LSET", key, i - 1 - left - #ids, GONE)
    end
    local from_tail = left + #ids < call("LLEN", key) - left
    call("LREM", key, from_tail and -#places or #places, GONE)
  end
end

local more = (is_over or #ids == step or #gone + #kept < #ids) and #gone < (tonumber(ARGV[9]) or math.huge)
local reported = 0
if ARGV[8] ~= "" then
  local count = tonumber(ARGV[8]) + #gone
  if not more or count >= REPORT then
    call("XADD", P .. "events", "*", "event", "cleaned", "count", count)
    reported = 1
  end
end
return remember({ #gone, passed + #kept, more and 1 or 0, reported, spent_us(), ARGV[10] == "1" and gone or nil })
