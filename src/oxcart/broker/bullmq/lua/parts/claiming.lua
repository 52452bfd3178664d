-- Claims ready jobs for a worker.

-- Most due jobs that one call promotes, so that a call stays short; fewer if plenty is ready.
local PROMOTE, PROMOTE_FEW = 25, 10

-- Most jobs that one call claims, and most ids without a job that it skips.
local MOST = 1000

-- Claimed jobs take this many times as long to write as to read.
local WRITING = 2

-- Whether the server can set several keys with an expiry in one command (Valkey 9.1, Redis 8.4).
local LEASES_AT_ONCE = (redis.VALKEY_VERSION_NUM or 0) >= 0x090100
  or (not redis.VALKEY_VERSION_NUM and (redis.REDIS_VERSION_NUM or 0) >= 0x080400)

-- Leases claimed jobs by their keys. A user without the right to the newer command leases them one by one.
local function lease(keys, token, lock)
  local many = #keys
  if LEASES_AT_ONCE and many > 1 then
    local leases = {}
    for i = 1, many do
      leases[2 * i - 1] = keys[i] .. ":lock"
      leases[2 * i] = token
    end
    leases[2 * many + 1] = "PX"
    leases[2 * many + 2] = lock
    local done = redis.pcall("MSETEX", many, unpack(leases))
    if type(done) ~= "table" then
      return
    end
  end
  for i = 1, many do
    call("PSETEX", keys[i] .. ":lock", lock, token)
  end
end

-- How much of a lease's token separates the values of a claimed job.
local NONCE = 12

-- The separator: set before the first job is read.
local BETWEEN

-- The names of the fields of a new job, in the orders in which the server returned them. Joined without a separator
-- they are no other fields that a claim looks for: no order of these names contains one of those.
local PLAIN = { name = true, data = true, opts = true, timestamp = true, delay = true, priority = true }
local plain_names = {}

-- The names, joined, of the last job of six fields in the reply. If the next job has the same, its names are left out.
local sent_names

-- Reads a job before the claim. Returns nil if the id names nothing readable, else: a flat list of fields and values;
-- the id and all of these as one text, because each string of a reply and each step of a loop has a cost; the job's
-- starts so far (as text if that is no count), its history if it has one, its stalls if it has some, and its names if
-- they are six: a script that puts the text into a reply sets `sent_names` to these.
-- No payload can contain the separator: its token is new, and begins with a random number of the worker.
local function read_job(id, key)
  local fields = redis.pcall("HGETALL", key)
  local many, between = #fields, BETWEEN
  if many == 0 then
    if fields.err and not string.find(fields.err, "WRONGTYPE", 1, true) then
      refuse(fields.err) -- a user who may not read jobs must not drop them
    end
    return nil
  end
  local text, names
  if many == 12 then -- nearly every job; spelled out, because a step of a loop costs as much as a comparison of ten bytes
    local a, b, c, d, e, f = fields[1], fields[3], fields[5], fields[7], fields[9], fields[11]
    names = a .. b .. c .. d .. e .. f
    if names == sent_names and plain_names[names] then -- the last separator makes the number of pieces even
      return fields, id .. between .. fields[2] .. between .. fields[4] .. between .. fields[6] .. between .. fields[8]
        .. between .. fields[10] .. between .. fields[12] .. between, 0
    end
    text = id .. between .. a .. between .. fields[2] .. between .. b .. between .. fields[4] .. between .. c .. between
      .. fields[6] .. between .. d .. between .. fields[8] .. between .. e .. between .. fields[10] .. between .. f
      .. between .. fields[12]
    if plain_names[names] then
      return fields, text, 0, nil, nil, names
    end
  else
    text = id .. between .. table.concat(fields, between)
  end
  local starts, history, stalls = 0, nil, nil
  local plain = names
  for i = 1, many, 2 do
    plain = plain and PLAIN[fields[i]]
    if fields[i] == "ats" then
      starts = count_of(fields[i + 1]) or fields[i + 1]
    elseif fields[i] == "ox:history" then
      history = fields[i + 1]
    elseif fields[i] == "stc" then
      stalls = fields[i + 1]
    end
  end
  if plain then
    plain_names[names] = true
  end
  return fields, text, starts, history, stalls, names
end

-- Returns the size of the payloads of some jobs.
local function payload_bytes(records)
  local size = 0
  for _, fields in ipairs(records) do
    for i = 1, #fields, 2 do
      if fields[i] == "data" then
        size = size + #fields[i + 1]
      end
    end
  end
  return size
end

-- Claims up to `asked.count` jobs. `limiting` builds the check by type and key (parts/limiting.lua); it is called
-- only if the queue has such limits. Returns a table:
--   jobs    a text per job: its id, and fields and values as before the claim
--   ids     of these jobs
--   starts  the number of the present start of each
--   orphans ids in a list without a job; they are dropped
--   limited ms until the rate limit permits the next job, or 0
--   closed  the queue is paused, or at its concurrency now
--   active  how many are active now, if some were claimed
--   due     ms time of the next delayed job if nothing more is ready; now, if many are due; or nil
--   early   the call reached its time limit, and there may be more
local function claim_jobs(asked, limiting)
  local answer = { jobs = {}, orphans = {}, limited = 0, starts = {}, lane = asked.lane }
  local now, count = asked.now, math.min(asked.count, MOST)
  local gate = read_gate(P)
  local many_due = promote_due(P, gate, now, PROMOTE, PROMOTE_FEW) >= PROMOTE_FEW

  local limiter = gate.limiter or P .. "limiter"
  local max = tonumber(gate.max or asked.limit_max)
  local used = tonumber(call("GET", limiter) or 0)
  if max and not used then
    refuse("ERR the limiter is no number") -- before anything is claimed: it could not be counted
  end
  used = used or 0
  if max or used >= HELD then
    if used >= (max or HELD) then
      local left = call("PTTL", limiter)
      if left > 0 then
        answer.limited = left
        return answer
      end
      if left == 0 then
        call("DEL", limiter)
        used = 0
      end
    end
    if max and used < max then
      count = math.min(count, max - used)
    end
  end
  if gate.closed then
    answer.closed = true
    answer.shut = gate.shut
    return answer
  end
  if gate.room then
    count = math.min(count, gate.room)
  end
  local limits = gate.limits and count > 0 and limiting(gate, now, count)

  local suspects = {}
  local taken, keys, histories, bytes, full, passed_over, reading = {}, {}, {}, 0, false, 0, nil
  local jobs, all_starts, records = answer.jobs, answer.starts, {}
  answer.ids = taken
  local function pass_over()
    passed_over = passed_over + 1
    full = passed_over >= MOST
  end
  local function take(id)
    local key = P .. id
    local fields, text, starts, history, stalls, names = read_job(id, key)
    if not fields then
      if string.sub(id, 1, 2) ~= "0:" then -- else a wake-up token of ancient peers
        answer.orphans[#answer.orphans + 1] = id
      end
      return pass_over()
    end
    if limits and not limits.admits(id, fields) then
      full = limits.is_tired
      return
    end
    local last = #taken + 1
    -- A value that is no count stays as it is: the worker quarantines the job.
    taken[last], keys[last], all_starts[last] = id, key, type(starts) == "number" and starts + 1 or starts
    if history then
      histories[last] = history
    end
    if stalls and stalls ~= "0" and asked.isolates then
      suspects[#suspects + 1] = last
    end
    jobs[last], records[last] = text, fields
    sent_names = names or sent_names
    bytes = bytes + #text
    if bytes >= asked.bytes then -- a bound that is quick to know; now exactly
      bytes = payload_bytes(records)
    end
    full = last >= count or bytes >= asked.bytes
    if asked.spell and last % 8 == 0 and not full then
      local spent = os.clock()
      full = spent - asked.began + WRITING * (spent - reading) > asked.spell
      answer.early = full
    end
  end

  local passed = 0
  reading = asked.spell and os.clock()
  full = count <= 0
  while not full do
    local ready = call("LRANGE", P .. "wait", -(count - #taken + passed), -(passed + 1))
    if #ready == 0 then
      break
    end
    for i = #ready, 1, -1 do
      take(ready[i])
      passed = passed + 1
      if full then
        break
      end
    end
  end
  local gone = {}
  while not full do
    local first = call("ZRANGE", P .. "prioritized", #gone, #gone + count - #taken - 1)
    if #first == 0 then
      call("DEL", P .. "pc")
      break
    end
    for _, id in ipairs(first) do
      take(id)
      gone[#gone + 1] = id
      if full then
        break
      end
    end
  end

  -- First into `active`, then out of the waiting list: a failure in between must not lose them.
  if limits then
    limits.write()
  end
  local active
  if #taken > 0 then
    active = call("LPUSH", P .. "active", unpack(taken))
    answer.active = active
  end
  if passed > 0 then
    call("LTRIM", P .. "wait", 0, -(passed + 1))
  end
  if #gone > 0 then
    call("ZREM", P .. "prioritized", unpack(gone))
  end
  if #taken > 0 then
    if max then
      local used = call("INCRBY", limiter, #taken)
      if used == #taken then
        local span = math.floor(math.abs(tonumber(asked.limit_duration or gate.duration) or 0))
        call("PEXPIRE", limiter, span)
      end
    end
    if gate.limiter and active == #taken then -- else the lane is already marked as busy
      call("SADD", gate.base .. "ox:lanes:busy", string.sub(P, #gate.base + 1, -2))
    end
    lease(keys, asked.token, asked.lock)
    local events, stamp, worker = P .. "events", asked.stamp, asked.worker
    for i = 1, #taken do
      call("XADD", events, "*", "event", "active", "jobId", taken[i], "prev", "waiting")
      if histories[i] then
        local history = noted(histories[i], stamp, "scheduled", "running", worker, "a worker accepts the job")
        call("HSET", keys[i], "processedOn", stamp, "ats", all_starts[i], "ox:history", history,
          unpack(worker and { "pb", worker } or {}))
      elseif worker then
        call("HSET", keys[i], "processedOn", stamp, "pb", worker, "ats", all_starts[i])
      else
        call("HSET", keys[i], "processedOn", stamp, "ats", all_starts[i])
      end
    end
    for _, i in ipairs(suspects) do -- until the worker starts it, a loss is not its doing
      call("HSET", keys[i], "ox:beside", "w" .. all_starts[i])
    end
  end
  if #taken > 0 or passed_over >= MOST or (limits and limits.is_tired) then
    call("ZADD", P .. "marker", 0, "0")
  end
  if limits then
    limits.offer()
  end
  answer.count = #taken
  answer.closed = gate.room and #taken >= gate.room
  if not full then
    answer.due = next_due(P)
  elseif many_due and not answer.closed then
    answer.due = now
  end
  return answer
end

-- Answers a repeated claim: the same jobs, as far as they are still ours. `claim` holds the ids and the starts. An
-- expired lease is revived if the job is still active and no other worker started it.
local function reread_claim(claim, token, lock)
  local jobs = {}
  for i, id in ipairs(claim[1]) do
    local starts = claim[2][i]
    local key = P .. id
    local fields, text, so_far = read_job(id, key)
    if fields and so_far == starts then
      local holder = call("GET", key .. ":lock")
      if not holder and call("LPOS", P .. "active", id) then
        call("SET", key .. ":lock", token, "PX", lock)
        holder = token
      end
      if holder == token then
        jobs[#jobs + 1] = text
      end
    end
  end
  return jobs
end

local function read_asked(at)
  local spell = rawget(_G, "os") and tonumber(ARGV[at + 8]) -- older servers have no CPU clock
  local stamp = time_of(ARGV[at])
  BETWEEN = "\0" .. string.sub(ARGV[at + 2], 1, NONCE)
  return {
    began = spell and os.clock(), spell = spell and spell / 1000000, -- in seconds of server time
    stamp = stamp, -- a number would cost more at each write
    now = tonumber(stamp), count = tonumber(ARGV[at + 1]), token = ARGV[at + 2], lock = ARGV[at + 3],
    worker = ARGV[at + 4] ~= "" and ARGV[at + 4] or nil,
    limit_max = ARGV[at + 5] ~= "" and ARGV[at + 5] or nil,
    limit_duration = ARGV[at + 6] ~= "" and ARGV[at + 6] or nil,
    bytes = tonumber(ARGV[at + 7]), isolates = ARGV[at + 9] == "1",
  }
end

-- With a choice of lanes (parts/lanes.lua): returns whether the claim may take the first lane without a look at the
-- others. It may if that lane has enough jobs without priority: nothing comes before those, and among equals the
-- first lane wins. From then on `P` is that lane.
local function goes_to_first(asked)
  local count, own, first = string.match(ARGV[4], "^(%d+)@([^@]*)@([^@]*)")
  local prefix = P
  if first ~= own then
    prefix = own == "base" and string.sub(P, 1, -2) or string.sub(P, 1, -(#own + 3))
    prefix = prefix .. (first == "base" and ":" or "@" .. first .. ":")
  end
  asked.wanted = tonumber(count)
  if call("LLEN", prefix .. "wait") < asked.wanted then
    return false
  end
  P, asked.count, asked.lane = prefix, asked.wanted, 1
  return true
end

-- Returns the reply for the caller, and the reply for the journal in case the caller repeats the call. The journal
-- keeps only ids and starts of claimed jobs, because their payloads can be read again.
-- With a choice of lanes the reply ends with the number of the lane it took (0 for none). If the script looked at more
-- than the first lane, two values follow. The first is 1 if that lane has more jobs though fewer than requested were
-- claimed. The second is a flat list of empty lanes: number, ms time of the next delayed job or 0. The journal also
-- keeps the key prefix of the lane.
local function answer_claim(codes, claim, now)
  local due = claim.due and math.floor(claim.due) or 0
  local lane = claim.lane
  local closed = claim.closed and (lane and claim.shut and 2 or 1) or 0
  local active = claim.active or call("LLEN", P .. "active")
  remember({ codes, { claim.ids or {}, claim.starts or {} }, claim.limited, due, closed, active, claim.orphans, lane and P or false, now, lane,
    claim.more, claim.empty })
  return { codes, claim.jobs, claim.limited, due, closed, active, claim.orphans,
    claim.early and 2 or 0, now, lane, claim.more, claim.empty }
end

local function repeat_claim(kept, asked)
  P = kept[8] or P
  kept[2] = reread_claim(kept[2], asked.token, asked.lock)
  kept[8] = 1
  return kept
end
