-- Removes keys of a queue that no longer belong to a job: one step of obliterate.
--
-- KEYS[1]  meta
-- ARGV     1 "", 2 "", 3 the caller whose journal stays, then key suffixes, each behind the queue's prefix
-- Returns  how many keys were removed
-- Keeps    keys that a job or a scheduler of the queue still has, keys that `obliterate` itself removes, and keys
--          of another queue whose prefix begins with this queue's name
-- include: base gate insert removal sweeping states

remembered()
-- Finding an id in a list takes a walk: lists longer than this are left to the next round.
local WALK = 2000

local KEPT, PARTS = {}, {}
for name in string.gmatch("meta id pc marker limiter delay priority events repeat stalled stalled-check wait paused "
    .. "active prioritized delayed waiting-children completed failed metrics:completed metrics:completed:data "
    .. "metrics:failed metrics:failed:data ox:held ox:parked ox:opening ox:turns ox:groups ox:swept ox:expiring ox:callbacks ox:gates ox:attempts "
    .. "ox:readers ox:workers ox:listeners ox:crowded ox:alive ox:away ox:lanes ox:lanes:ready ox:lanes:busy "
    .. "ox:lanes:version ox:lanes:tended ox:ids", "%S+") do
  KEPT[name] = true
end
for name in string.gmatch("lock logs dependencies processed failed unsuccessful", "%S+") do
  PARTS[name] = true
end

local walk = call("LLEN", P .. "wait") + call("LLEN", P .. "paused") + call("LLEN", P .. "active")

local function begins(name, with)
  return string.sub(name, 1, #with) == with
end

-- A queue `r` with the prefix `bull:q` has keys that begin like those of the queue `q` with the prefix `bull`.
local function is_of_another_queue(name)
  local at = string.find(name, ":", 1, true)
  while at do
    local base = P .. string.sub(name, 1, at)
    if call("EXISTS", base .. "meta", base .. "events") > 0 then
      return true
    end
    at = string.find(name, ":", at + 1, true)
  end
  return false
end

local function is_job(name)
  if call("TYPE", P .. name).ok ~= "hash" then
    return false
  end
  local job = call("HMGET", P .. name, "name", "timestamp", "opts")
  return job[1] and job[2] and job[3]
end

-- Returns whether the key holds the id of an existing job.
local function names_a_job(name)
  local id = redis.pcall("GET", P .. name)
  return type(id) == "string" and call("EXISTS", P .. id) == 1
end

local function is_stray(name)
  local id, part = string.match(name, "^(.*):([^:]*)$")
  if id and PARTS[part] and is_job(id) then
    return false -- whatever its id begins with: the id of a run begins with "repeat:"
  elseif begins(name, "ox:call:") then
    return not begins(name, "ox:call:" .. ARGV[3] .. ":")
  elseif begins(name, "ox:idem:") or begins(name, "de:") then
    return not names_a_job(name)
  elseif begins(name, "dn:") then
    return call("EXISTS", P .. "de:" .. string.sub(name, 4)) == 0
  elseif begins(name, "ox:") then
    return true
  elseif begins(name, "repeat:") then
    return not call("ZSCORE", P .. "repeat", string.sub(name, 8))
  end
  return id and PARTS[part] and call("EXISTS", P .. id) == 0
end

local function remove(name)
  if KEPT[name] or is_of_another_queue(name) then
    return 0
  elseif is_job(name) then
    if walk > WALK or is_in_a_state(name) then
      return 0
    end
    local job = call("HMGET", P .. name, "parentKey", "deid")
    sweep_job(name, job[1], job[2])
    call("UNLINK", P .. name .. ":lock")
    return 1
  end
  return is_stray(name) and call("UNLINK", P .. name) or 0
end

local removed = 0
for i = 4, #ARGV do
  local fine, count = pcall(remove, ARGV[i])
  removed = removed + (fine and count or 0)
end
return removed
