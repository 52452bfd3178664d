-- The side index: jobs of the waiting list again, by type, target, priority and order.
--
-- The list is the truth, and clients that share it know nothing of the index. So an id in a lane may be gone from the
-- list (another client took it: the claim notices), and an id of the list may be in no lane (another client
-- inserted it: the scan of claim.lua finds it).

local function lane_key(job_type, lane)
  return P .. "ox:lane:" .. #job_type .. ":" .. job_type .. ":" .. lane
end

-- Registers a job type of the namespace by name, once per call.
local known_types = {}
local function note_type(job_type)
  if not known_types[job_type] then
    known_types[job_type] = true
    call("SADD", P .. "ox:types", job_type)
  end
end

-- Emits the event of a new job with its handler's name. While a pipeline reads, the event also has the record's
-- fields for it, and the rule by which a schedule made it, as JSON.
local function emit_added(job_type, id, packed, rule)
  local fields = cmsgpack.unpack(packed)
  if is_read(job_type) then
    if rule then
      fields[#fields + 1] = "rule"
      fields[#fields + 1] = rule
    end
    emit(job_type, "added", id, "outcome", "added", unpack(fields))
  else
    emit(job_type, "added", id, fields[1], fields[2])
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

-- Removes a job from its lane, not from the list.
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

-- Returns the record of a job, or false, also if its key holds no text. An id in the list may name any key, and an
-- unreadable entry must not stop its neighbours.
local function record_of(id)
  local raw = redis.pcall("GET", P .. "jobs:data:" .. id)
  if type(raw) ~= "table" then
    return raw
  elseif not string.find(raw.err, "WRONGTYPE", 1, true) then
    refuse(raw.err) -- a user who may not read records must not drop them
  end
  return false
end

-- In a list longer than this, an id is searched near both ends before the whole list.
local LONG = 2000
local NEAR = 1000

-- Entries of the list that this call has searched for jobs far from both ends.
local gone_through = 0

-- Removes a job from the list; returns whether it was there.
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

-- Makes a job ready: into the list, as the specification defines (priority 7 and above to the head), and its lane.
local function make_ready(id, facts, front)
  local high = front or (facts and facts[3] >= 7)
  call(high and "LPUSH" or "RPUSH", WAITING, id)
  call("SET", P .. "jobs:status:" .. id, "waiting")
  if facts then
    list_job(id, facts, front)
  end
end

-- Stores when a job became ready.
local function note_ready(id, now)
  call("HSET", P .. "ox:job:" .. id, "ox:ready", now)
end

-- Makes a job wait until others have completed. Each of them lists its dependents for a day, so that its end need not
-- search all waiting jobs; after that a slower search finds them (settle.lua).
local function make_pending(id, unmet, now)
  call("ZADD", P .. "ox:pending", now, id)
  for _, other in ipairs(unmet) do
    call("SADD", P .. "ox:next:" .. other, id)
    call("EXPIRE", P .. "ox:next:" .. other, 86400)
  end
end

-- Promotes at most `most` due jobs; returns how many. Ids of other clients that no worker has read yet go only to the
-- list, and the scan finds them there.
local function promote_due(now, most)
  local due = call("ZRANGEBYSCORE", P .. "jobs:delayed", "-inf", now, "LIMIT", 0, most)
  for _, id in ipairs(due) do
    call("ZREM", P .. "jobs:delayed", id)
    local facts = facts_of(id)
    make_ready(id, facts, false)
    if facts then
      note_ready(id, now)
      emit(facts[1], "waiting", id, "prev", "delayed")
    end
  end
  return #due
end

-- Returns when the next delayed job is due, or 0; other clients write infinity for never.
local function next_due()
  local first = call("ZRANGE", P .. "jobs:delayed", 0, 0, "WITHSCORES")
  local due = math.ceil(tonumber(first[2] or 0))
  return due < 2 ^ 53 and due or 0
end
