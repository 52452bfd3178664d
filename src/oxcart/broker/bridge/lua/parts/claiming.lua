-- Claims jobs for a worker, and scans the list for jobs of other clients.

-- Most candidates per call that prove to be missing or locked.
local MOST_MISSES = 50
-- Entries of the list that a call searches for jobs in its middle; 20 000 take the server half a ms. The
-- first such job is taken in any case.
local MOST_GONE_THROUGH = 20000
-- Most lanes that a starving worker receives.
local MOST_LANES = 200
-- Most due jobs that a claim promotes, and most jobs that it puts back into their lanes.
local MOST_DUE = 25
local MOST_RELISTED = 25
-- Offset of the attempts in a record that must be read again.
local UNREAD = -2
-- From which depth in the list an entry is searched nearby, and how far to both sides.
local FAR = 5000
local NEARBY = 250
-- Ms after which a scan of an unchanged list is repeated.
local PASS_AGAIN = 1000

local function read_asked(at)
  local asked = {
    now = tonumber(time_of(ARGV[at])), count = tonumber(ARGV[at + 1]), worker = ARGV[at + 2],
    lock = ARGV[at + 3], type = ARGV[at + 4], bytes = tonumber(ARGV[at + 5]), step = tonumber(ARGV[at + 6]),
    lanes = {},
    client = string.match(ARGV[1], "^[^:]*"), -- where the worker receives requests to cancel jobs
  }
  local lanes = tonumber(ARGV[at + 7])
  for i = 1, lanes do
    asked.lanes[i] = ARGV[at + 7 + i]
  end
  return asked, at + 8 + lanes
end

-- Returns the present index of a list entry that had this index, or -1. In a long list it is searched nearby before
-- everything in front of it.
local function place_near(id, place)
  if place > FAR then
    local from = place - NEARBY
    for i, other in ipairs(call("LRANGE", WAITING, from, place + NEARBY)) do
      if other == id then
        return from + i - 1
      end
    end
  end
  return call("LPOS", WAITING, id, "MAXLEN", place + 1000) or -1
end

-- Scans the next entries of the list for ids that are in no lane. All workers of the namespace share the scan, and it
-- continues where the last call stopped, so that a list of any length is read once.
-- Returns the ids that no worker has read yet, and whether the scan continues.
local function scan(asked)
  local key = P .. "ox:scan"
  local length = call("LLEN", WAITING)
  if length == 0 then
    return {}, 0
  end
  local state = call("HMGET", key, "at", "anchor", "head", "tail", "done")
  local at = tonumber(state[1] or nil)
  if not at then
    local head, tail = call("LINDEX", WAITING, 0), call("LINDEX", WAITING, -1)
    local done = tonumber(state[5] or nil) or 0
    if head == state[3] and tail == state[4] and asked.now - done < PASS_AGAIN and asked.now >= done then
      return {}, 0
    end
    at = 0
    call("HSET", key, "head", head, "tail", tail)
  elseif at > 0 and call("LINDEX", WAITING, at - 1) ~= state[2] then
    -- Entries before it were removed or added: continue behind the last known one, or begin again without it.
    at = place_near(state[2], at - 1) + 1
  end
  local ids = call("LRANGE", WAITING, at, at + asked.step - 1)
  local unknown, relisted = {}, 0
  if #ids > 0 then
    local listed = call("SMISMEMBER", P .. "ox:listed", unpack(ids))
    local unlisted, places = {}, {}
    for i, id in ipairs(ids) do
      if listed[i] == 0 then
        unlisted[#unlisted + 1], places[#places + 1] = id, i
      end
    end
    local known = #unlisted > 0 and call("HMGET", P .. "ox:facts", unpack(unlisted))
    for i, id in ipairs(unlisted) do
      local facts = read_facts(known[i])
      if facts and facts[6] ~= UNREAD then
        list_job(id, facts, false)
        relisted = relisted + 1
        if relisted == MOST_RELISTED then
          for later = #ids, places[i] + 1, -1 do
            ids[later] = nil
          end
          break
        end
      else
        unknown[#unknown + 1] = id
      end
    end
  end
  at = at + #ids
  if at >= length or #ids == 0 then
    call("HDEL", key, "at", "anchor")
    call("HSET", key, "done", asked.now)
    return unknown, 0
  end
  call("HSET", key, "at", at, "anchor", ids[#ids])
  return unknown, 1
end

-- The first job of each lane that the worker may serve; refreshed lane by lane.
local function head_of(asked, lane)
  local first = call("ZRANGE", lane_key(asked.type, lane), 0, 0, "WITHSCORES")
  if first[1] then
    return { id = first[1], score = tonumber(first[2]) }
  end
  return nil
end

-- Returns whether a limit of its type holds a job back: nil, "closed" or the ms until the minute ends.
local function held_back(facts)
  if facts[4] > 0 then
    local running = tonumber(call("GET", P .. "ratelimit:concurrent:" .. facts[1]) or 0) or 0
    if running >= facts[4] then
      return "closed"
    end
  end
  if facts[5] > 0 then
    local key = P .. "ratelimit:minute:" .. facts[1]
    if (tonumber(call("GET", key) or 0) or 0) >= facts[5] then
      local left = call("PTTL", key)
      if left < 0 then
        call("EXPIRE", key, 60) -- a client counted without a window
        left = 60000
      end
      return math.max(1, left)
    end
  end
  return nil
end

-- Drops the known facts of a job: the scan returns it to be read again, if it is in the list at all. A job that has
-- run stays known, so that the record of its runs is removed with it (forget.lua).
local function unlearn(id, facts)
  if call("EXISTS", P .. "ox:job:" .. id) == 1 then
    facts[6] = UNREAD
    call("HSET", P .. "ox:facts", id, cmsgpack.pack(facts))
  else
    call("HDEL", P .. "ox:facts", id)
  end
end

-- Claims one job for the worker. Returns the job, or nil and whether to remove its place in the lane.
local function take(asked, id, facts, orphans)
  local raw = record_of(id)
  if not raw then
    unqueue(id)
    call("DEL", P .. "ox:job:" .. id)
    call("HDEL", P .. "ox:facts", id)
    orphans[#orphans + 1] = id
    return nil
  end
  local counted_raw = facts[6] ~= UNREAD and counted(raw, facts[6], 1)
  if not counted_raw then
    unlearn(id, facts)
    return nil
  end
  if not call("SET", P .. "jobs:lock:" .. id, asked.worker, "NX", "PX", asked.lock) then
    return nil
  end
  if not unqueue(id) then
    call("DEL", P .. "jobs:lock:" .. id) -- another client has it, or had it
    unlearn(id, facts)
    return nil
  end
  call("SET", P .. "jobs:data:" .. id, counted_raw)
  if facts[6] < 0 and facts[6] ~= WHOLE then
    facts[6] = 12 -- the present offset of the number
    call("HSET", P .. "ox:facts", id, cmsgpack.pack(facts))
  end
  call("SADD", P .. "jobs:active", id)
  call("SET", P .. "jobs:status:" .. id, "active")
  call("INCR", P .. "ratelimit:concurrent:" .. facts[1])
  if call("INCR", P .. "ratelimit:minute:" .. facts[1]) == 1 then
    call("EXPIRE", P .. "ratelimit:minute:" .. facts[1], 60)
  end
  local starts = redis.pcall("HINCRBY", P .. "ox:job:" .. id, "ats", 1)
  if type(starts) ~= "number" or starts < 1 or starts > 2 ^ 53 then -- no count: the count starts here
    if type(starts) == "table" and string.find(starts.err, "WRONGTYPE", 1, true) then
      call("DEL", P .. "ox:job:" .. id)
    end
    starts = 1
    call("HSET", P .. "ox:job:" .. id, "ats", starts)
  end
  local earlier = starts == 1 and {} or call("HGETALL", P .. "ox:job:" .. id) -- with the time of the start before
  call("HSET", P .. "ox:job:" .. id, "processedOn", asked.now, "pb", asked.worker,
    "client", asked.client)
  call("HSET", P .. "ox:held", id, facts[1])
  call("SADD", P .. "ox:active:" .. facts[1], id)
  emit(facts[1], "active", id, "prev", "waiting")
  if starts > 1 then
    call("PERSIST", P .. "ox:job:" .. id) -- other clients may let an ended job run again
  end
  return { id, starts, counted_raw, earlier }
end

-- Returns a table: jobs, limited, due, closed, active, orphans, unknown, more, lanes.
local function claim_jobs(asked)
  local answer = { jobs = {}, limited = 0, due = 0, closed = 0, orphans = {}, unknown = {}, more = 0, lanes = {} }
  local taken = {}
  promote_due(asked.now, MOST_DUE)
  if asked.step > 0 then
    answer.unknown, answer.more = scan(asked)
  end
  local held = call("PTTL", P .. "ox:hold:" .. asked.type)
  if call("SISMEMBER", P .. "queues:paused", asked.type) == 1 then
    answer.closed = 1
  elseif held > 0 then
    answer.limited = held
  elseif asked.count > 0 then
    note_type(asked.type)
    local heads, bytes, misses, mine = {}, 0, 0, {}
    for i, lane in ipairs(asked.lanes) do
      heads[i] = head_of(asked, lane)
      mine[lane] = true
    end
    while #answer.jobs < asked.count and bytes < asked.bytes and misses < MOST_MISSES
      and gone_through < MOST_GONE_THROUGH do
      local best
      for i = 1, #asked.lanes do
        if heads[i] and (not best or heads[i].score < heads[best].score) then
          best = i
        end
      end
      if not best then
        break
      end
      local id = heads[best].id
      local facts = facts_of(id)
      local back = facts and held_back(facts)
      if back then
        if back == "closed" then
          answer.closed = 1
        else
          answer.limited = back
        end
        heads[best] = nil
      else
        local job = facts and take(asked, id, facts, answer.orphans)
        unlist_job(id, { asked.type, asked.lanes[best] }) -- where it is, whatever its facts are by now
        heads[best] = head_of(asked, asked.lanes[best])
        if job then
          answer.jobs[#answer.jobs + 1] = job
          taken[#taken + 1] = id
          bytes = bytes + #job[3]
        else
          misses = misses + 1
        end
      end
    end
    local is_cut = #answer.jobs >= asked.count or gone_through >= MOST_GONE_THROUGH
    if is_cut and next(heads) then
      answer.limited, answer.closed = 0, 0 -- a limit that holds one lane back does not concern the others
      answer.more = 1
      call("ZADD", P .. "ox:marker:" .. asked.type, 0, "0") -- there is more: wake the next worker
    elseif #answer.jobs < asked.count then
      for _, lane in ipairs(call("SRANDMEMBER", P .. "ox:lanes:" .. asked.type, MOST_LANES)) do
        if not mine[lane] then
          answer.lanes[#answer.lanes + 1] = lane
        end
      end
    end
    if misses >= MOST_MISSES then
      answer.more = 1
    end
  end
  answer.due = next_due()
  answer.taken = taken
  return answer
end

-- Builds the reply of a script that claims; jobs as MessagePack, because each string of a reply costs the server
-- three times as much.
local function build_reply(codes, answer, asked, repeated)
  return {
    codes, cmsgpack.pack(answer.jobs), answer.limited, answer.due, answer.closed,
    tonumber(call("GET", P .. "ratelimit:concurrent:" .. asked.type) or 0) or 0, answer.orphans, repeated,
    answer.unknown, answer.more, answer.lanes, answer.awaited or {}, answer.now or asked.now,
  }
end

-- Builds the journaled reply of a call: codes, and the claimed jobs. A repeated call reads them again.
local function answer_claim(codes, answer, asked)
  remember({ codes, answer.taken or {}, asked.now })
  return build_reply(codes, answer, asked, 0)
end

local function repeat_claim(kept, asked)
  local answer = { jobs = {}, limited = 0, due = 0, closed = 0, orphans = {}, unknown = {}, more = 1, lanes = {},
    now = kept[3] }
  for _, id in ipairs(kept[2]) do
    local raw = record_of(id)
    if raw and call("GET", P .. "jobs:lock:" .. id) == asked.worker then
      local run = call("HGETALL", P .. "ox:job:" .. id)
      answer.jobs[#answer.jobs + 1] = { id, call("HGET", P .. "ox:job:" .. id, "ats"), raw, run }
    end
  end
  return build_reply(kept[1], answer, asked, 1)
end
