-- How jobs come into the hands of a worker, and how the list is looked through for jobs of other clients.

-- Candidates that turn out not to be there, or to be locked, per call at most.
local MOST_MISSES = 50
-- Entries of the list that a call goes through for jobs in its midst; 20 000 take the server half a ms. The
-- first such job is taken in any case.
local MOST_GONE_THROUGH = 20000
-- Lanes that a starving worker receives at most.
local MOST_LANES = 200
-- Jobs that a claim lets through whose time has come, and that it puts back into their lanes, at most.
local MOST_DUE = 25
local MOST_RELISTED = 25
-- Where the attempts stand in a record that is to be read anew.
local UNREAD = -2
-- How far behind the head of the list an entry is looked for nearby, and how far to both sides.
local FAR = 5000
local NEARBY = 250
-- A pass over an unchanged list is repeated after so many ms.
local PASS_AGAIN = 1000

local function read_asked(at)
  local asked = {
    now = tonumber(time_of(ARGV[at])), count = tonumber(ARGV[at + 1]), worker = ARGV[at + 2],
    lock = ARGV[at + 3], type = ARGV[at + 4], bytes = tonumber(ARGV[at + 5]), step = tonumber(ARGV[at + 6]),
    lanes = {},
    client = string.match(ARGV[1], "^[^:]*"), -- where the worker hears of jobs that are to be cancelled
  }
  local lanes = tonumber(ARGV[at + 7])
  for i = 1, lanes do
    asked.lanes[i] = ARGV[at + 7 + i]
  end
  return asked, at + 8 + lanes
end

-- Where an entry of the list is now that was at this place, or -1. In a long list it is looked for nearby before
-- all that is in front of it is gone through.
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

-- Looks at the next entries of the list for ids that stand in no lane. The pass is shared by all workers of
-- the namespace and goes on where the last call stopped, so that the list is seen once however long it is.
-- Returns the ids that no worker has read yet, and whether the pass goes on.
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
    if head == state[3] and tail == state[4] and asked.now - tonumber(state[5] or 0) < PASS_AGAIN
      and asked.now >= tonumber(state[5] or 0) then
      return {}, 0
    end
    at = 0
    call("HSET", key, "head", head, "tail", tail)
  elseif at > 0 and call("LINDEX", WAITING, at - 1) ~= state[2] then
    -- Entries before it went or came: go on behind the last one that was seen, or begin anew without it.
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
      local facts = known[i] and cmsgpack.unpack(known[i])
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

-- Whether a limit of its type keeps a job back: nil, "closed" or the ms until the minute is over.
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

-- What was learned of a job holds no more: the scan brings it to be read anew, where it is in the list at all.
-- A job that has run stays known, so that what is written down of its runs goes when it does (forget.lua).
local function unlearn(id, facts)
  if call("EXISTS", P .. "ox:job:" .. id) == 1 then
    facts[6] = UNREAD
    call("HSET", P .. "ox:facts", id, cmsgpack.pack(facts))
  else
    call("HDEL", P .. "ox:facts", id)
  end
end

-- Gives one job to the worker. Returns the job, or nil and whether its place in the lane is to go.
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
    call("DEL", P .. "jobs:lock:" .. id) -- another client has it, or had
    unlearn(id, facts)
    return nil
  end
  call("SET", P .. "jobs:data:" .. id, counted_raw)
  if facts[6] < 0 and facts[6] ~= WHOLE then
    facts[6] = 12 -- where the number stands now
    call("HSET", P .. "ox:facts", id, cmsgpack.pack(facts))
  end
  call("SADD", P .. "jobs:active", id)
  call("SET", P .. "jobs:status:" .. id, "active")
  call("INCR", P .. "ratelimit:concurrent:" .. facts[1])
  if call("INCR", P .. "ratelimit:minute:" .. facts[1]) == 1 then
    call("EXPIRE", P .. "ratelimit:minute:" .. facts[1], 60)
  end
  local starts = redis.pcall("HINCRBY", P .. "ox:job:" .. id, "ats", 1)
  if type(starts) ~= "number" or starts < 1 or starts > 2 ^ 53 then -- no count: counted from here
    if type(starts) == "table" and string.find(starts.err, "WRONGTYPE", 1, true) then
      call("DEL", P .. "ox:job:" .. id)
    end
    starts = 1
    call("HSET", P .. "ox:job:" .. id, "ats", starts)
  end
  call("HSET", P .. "ox:job:" .. id, "processedOn", asked.now, "pb", asked.worker,
    "client", asked.client)
  call("HSET", P .. "ox:held", id, facts[1])
  call("SADD", P .. "ox:active:" .. facts[1], id)
  tell(facts[1], "active", id, "prev", "waiting")
  if starts == 1 then
    return { id, starts, counted_raw, {} }
  end
  call("PERSIST", P .. "ox:job:" .. id) -- others may let a job run again that had ended
  return { id, starts, counted_raw, call("HGETALL", P .. "ox:job:" .. id) }
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
        unlist_job(id, { asked.type, asked.lanes[best] }) -- where it stands, whatever its facts say by now
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
      answer.limited, answer.closed = 0, 0 -- a limit that keeps one lane back does not concern the others
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

-- The answer of a script that claims; jobs as MessagePack, because each string of an answer costs the server
-- three times as much.
local function tell_claim(codes, answer, asked, repeated)
  return {
    codes, cmsgpack.pack(answer.jobs), answer.limited, answer.due, answer.closed,
    tonumber(call("GET", P .. "ratelimit:concurrent:" .. asked.type) or 0) or 0, answer.orphans, repeated,
    answer.unknown, answer.more, answer.lanes, answer.awaited or {}, answer.now or asked.now,
  }
end

-- What is remembered of a call: codes, and which jobs it took. A repeat reads them anew.
local function answer_claim(codes, answer, asked)
  remember({ codes, answer.taken or {}, asked.now })
  return tell_claim(codes, answer, asked, 0)
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
  return tell_claim(kept[1], answer, asked, 1)
end
