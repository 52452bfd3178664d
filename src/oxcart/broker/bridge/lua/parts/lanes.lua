-- The side index: jobs of the waiting list once more, by type, target, priority and turn.
--
-- The list is the truth and is shared with clients that know nothing of the index. So an id in a lane may be
-- gone from the list (another client took it: noticed when it is claimed), and an id of the list may be in
-- no lane (another client put it there: found by the scan of claim.lua).

local function lane_key(job_type, lane)
  return P .. "ox:lane:" .. #job_type .. ":" .. job_type .. ":" .. lane
end

-- The job types of the namespace are known by name, each noted once per call.
local known_types = {}
local function note_type(job_type)
  if not known_types[job_type] then
    known_types[job_type] = true
    call("SADD", P .. "ox:types", job_type)
  end
end

-- Tells of a new job: its handler's name, and while a pipeline reads, all that its record has for it and the rule by
-- which a schedule made it, as JSON.
local function tell_added(job_type, id, packed, rule)
  local told = cmsgpack.unpack(packed)
  if is_read(job_type) then
    if rule then
      told[#told + 1] = "rule"
      told[#told + 1] = rule
    end
    tell(job_type, "added", id, "outcome", "added", unpack(told))
  else
    tell(job_type, "added", id, told[1], told[2])
  end
end

-- Puts a job of the list into its lane: behind its equals, or before them.
local function list_job(id, facts, front)
  note_type(facts[1])
  local turn = front and -call("INCR", P .. "ox:front") or call("INCR", P .. "ox:turns")
  local score = string.format("%.0f", (10 - facts[3]) * 1e14 + 5e13 + turn)
  call("ZADD", lane_key(facts[1], facts[2]), score, id)
  call("SADD", P .. "ox:lanes:" .. facts[1], facts[2])
  call("SADD", P .. "ox:listed", id)
  call("ZADD", P .. "ox:marker:" .. facts[1], 0, "0")
end

-- Takes a job out of its lane; the list is not touched.
local function unlist_job(id, facts)
  call("SREM", P .. "ox:listed", id)
  if facts then
    local key = lane_key(facts[1], facts[2])
    call("ZREM", key, id)
    if call("EXISTS", key) == 0 then
      call("SREM", P .. "ox:lanes:" .. facts[1], facts[2])
    end
  end
end

-- The record of a job, or false; false as well where its key holds no text: an id in the list may lead anywhere, and
-- an entry without a readable record must not stop its neighbours.
local function record_of(id)
  local raw = redis.pcall("GET", P .. "jobs:data:" .. id)
  if type(raw) ~= "table" then
    return raw
  elseif not string.find(raw.err, "WRONGTYPE", 1, true) then
    refuse(raw.err) -- a user who may not read records must not drop them
  end
  return false
end

-- In a longer list an id is looked for near both ends before all of it is gone through.
local LONG = 2000
local NEAR = 1000

-- Entries of the list that this call has gone through for jobs far from both ends, some of them for nothing.
local gone_through = 0

-- Takes a job out of the list; returns whether it was there.
local function unqueue(id)
  local from, length = 1, call("LLEN", WAITING)
  if length > LONG and not call("LPOS", WAITING, id, "MAXLEN", NEAR) then
    if call("LPOS", WAITING, id, "RANK", -1, "MAXLEN", NEAR) then
      from = -1
    else
      gone_through = gone_through + length
    end
  end
  return call("LREM", WAITING, from, id) == 1
end

-- Makes a job ready: into the list, as the document defines (priority 7 and above to the head), and its lane.
local function make_ready(id, facts, front)
  local high = front or (facts and facts[3] >= 7)
  call(high and "LPUSH" or "RPUSH", WAITING, id)
  call("SET", P .. "jobs:status:" .. id, "waiting")
  if facts then
    list_job(id, facts, front)
  end
end

-- Notes when a job became ready that was not so before.
local function note_ready(id, now)
  call("HSET", P .. "ox:job:" .. id, "ox:ready", now)
end

-- Lets a job wait until others have completed. Each of them lists its dependents, so that its end need not
-- look at all that wait; for a day, after which a slower look finds them (settle.lua).
local function make_pending(id, unmet, now)
  call("ZADD", P .. "ox:pending", now, id)
  for _, other in ipairs(unmet) do
    call("SADD", P .. "ox:next:" .. other, id)
    call("EXPIRE", P .. "ox:next:" .. other, 86400)
  end
end

-- Promotes jobs whose time has come, at most so many; returns how many. Ids of other clients that no worker has
-- read yet go to the list alone, and the scan finds them there.
local function promote_due(now, most)
  local due = call("ZRANGEBYSCORE", P .. "jobs:delayed", "-inf", now, "LIMIT", 0, most)
  for _, id in ipairs(due) do
    call("ZREM", P .. "jobs:delayed", id)
    local facts = facts_of(id)
    make_ready(id, facts, false)
    if facts then
      note_ready(id, now)
      tell(facts[1], "waiting", id, "prev", "delayed")
    end
  end
  return #due
end

-- When the next delayed job is due, or 0; others write infinity for never.
local function next_due()
  local first = call("ZRANGE", P .. "jobs:delayed", 0, 0, "WITHSCORES")
  local due = math.ceil(tonumber(first[2] or 0))
  return due < 2 ^ 53 and due or 0
end
