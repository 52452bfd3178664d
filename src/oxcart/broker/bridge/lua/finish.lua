-- Finishes attempts, and claims into the freed slots.
--
-- KEYS[1]  waiting
-- ARGV     1 slot, 2 number of the call, 3 … as claim.lua, then how many outcomes, and each as MessagePack:
--          { kind, id, worker id, starts or "", at or "" for the time of the call, result, reason, stack, category,
--            code, delay, counts, front, seconds to keep, other facts (MessagePack) or "", its formal state or "",
--            the newest stack or "", why it is a dead letter although attempts are left or "",
--            the signal that a delayed job waits for or "", the version of the worker's program or "" }
--          kind: c completed, f failed for good, x failed without being a dead letter (cancelled),
--          r retry now, d delay, w return, l return and hold the type
-- Returns  as claim.lua, with a code per outcome first: 1, -1 no such job, -2 the lease has expired,
--          -3 not active, -6 another worker has the lease; awaited are ended jobs that have dependents
-- Events   `completed`, `failed`, `delayed` or `waiting` per outcome, and those of claim.lua
-- Keeps    every end of a job frees its slot; a run that does not count is removed from the record
-- include: base steps lanes leaving counting claiming

local asked, at = read_asked(3)
local kept = remembered()
if kept then
  return repeat_claim(kept, asked)
end

local function refusal(id, worker, starts)
  if call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    return -1
  end
  local holder = call("GET", P .. "jobs:lock:" .. id)
  local run = call("HMGET", P .. "ox:job:" .. id, "ats", "pb")
  if (holder and holder ~= worker) or (starts ~= "" and tonumber(run[1] or 0) ~= starts) then
    return -6
  end
  if holder then
    return nil -- the lock suffices: another client may have removed the job from `active`
  end
  if call("SISMEMBER", P .. "jobs:active", id) == 0 then
    return -3
  end
  if starts == "" or run[2] ~= worker then
    return -2
  end
  return nil
end

local function uncount(id, facts, runs)
  local raw = record_of(id)
  local fewer, left
  if raw then
    fewer, left = counted(raw, facts and facts[6] >= 0 and facts[6] or 12, -runs)
  end
  if fewer then
    call("SET", P .. "jobs:data:" .. id, fewer)
  end
  return left or 0
end

local function note_failure(id, o)
  if o[7] ~= "" then
    call("HSET", P .. "ox:job:" .. id, "failedReason", o[7])
  end
  if o[8] ~= "" then
    call("HSET", P .. "ox:job:" .. id, "stacktrace", o[8])
  end
  if o[9] ~= "" then
    call("HSET", P .. "ox:job:" .. id, "ox:category", o[9], "ox:code", o[10])
  end
  if o[18] ~= "" then
    call("HSET", P .. "ox:job:" .. id, "ox:dead", o[18])
  end
end

local function run_fields(o, outcome, reason)
  return fields_of_run(o[2], asked.type, outcome, o[5], o[9], o[10], reason, o[17], o[20])
end

local pending = call("ZCARD", P .. "ox:pending")
local end_as = {}

-- A schedule that ran under its own id starts the count of runs again for its next firing.
local ALL_RUNS = 1e9

function end_as.c(id, o, facts)
  call("SET", P .. "jobs:result:" .. id, timed(o[6], id, o[5]), "EX", 86400)
  call("SET", P .. "jobs:status:" .. id, "completed")
  call("HSET", P .. "ox:job:" .. id, "finishedOn", o[5])
  call("HDEL", P .. "ox:job:" .. id, "failedReason")
  call("INCR", P .. "metrics:jobs:processed")
  emit(asked.type, "completed", id, "returnvalue", o[7], "prev", "active", run_fields(o, "completed"))
  if keep_for(id, o[14]) then
    uncount(id, facts, ALL_RUNS)
  end
  if o[14] > 0 then
    note_end(id, asked.type, "completed", o[5])
  elseif pending > 0 and call("EXISTS", P .. "jobs:data:" .. id) == 0 then
    call("SET", P .. "jobs:status:" .. id, "completed", "EX", 86400) -- others may depend on it
  end
end

function end_as.f(id, o)
  note_failure(id, o)
  call("HSET", P .. "ox:job:" .. id, "finishedOn", o[5])
  bury(id, asked.type, o[6], o[5], o[7], o[16], run_fields(o, "failed"))
  if o[14] == 0 then
    keep_for(id, 0)
    call("LREM", P .. "jobs:deadletter", 1, id)
    call("ZREM", P .. "ox:ended:failed:" .. asked.type, id)
  end
end

function end_as.x(id, o)
  note_failure(id, o)
  call("HSET", P .. "ox:job:" .. id, "finishedOn", o[5])
  call("SET", P .. "jobs:result:" .. id, timed(o[6], id, o[5]), "EX", 86400)
  call("SET", P .. "jobs:status:" .. id, "failed")
  call("INCR", P .. "metrics:jobs:failed")
  emit(asked.type, "failed", id, "failedReason", o[7], "prev", "active", "state", o[16], run_fields(o, "failed"))
  keep_for(id, o[14])
  if o[14] > 0 then
    note_end(id, asked.type, "cancelled", o[5])
  end
end

function end_as.r(id, o, facts)
  note_failure(id, o)
  make_ready(id, facts, o[13])
  note_ready(id, o[5])
  emit(asked.type, "waiting", id, "prev", "active", run_fields(o, "retried", o[7]))
end

-- Counts a start that ended without being an attempt: workers may bound such starts.
local function excuse(id)
  redis.pcall("HINCRBY", P .. "ox:job:" .. id, "ox:excused", 1)
end

function end_as.d(id, o, facts)
  note_failure(id, o)
  if not o[12] then
    excuse(id)
  end
  local runs = o[12] and 1 or uncount(id, facts, 1)
  if o[19] ~= "" then
    call("HSET", P .. "ox:job:" .. id, "ox:waits", o[19])
    if has_signal(P .. "ox:job:" .. id, o[19]) then
      o[11] = 0 -- it arrived after the handler had looked for it
    end
  end
  if o[21] then
    call("HSET", P .. "ox:job:" .. id, "ox:unhandled", o[4])
  end
  local due = string.format("%.0f", o[5] + o[11])
  call("HSET", P .. "ox:job:" .. id, "delay", math.max(1, o[11]), "ox:moved", o[5])
  call("SET", P .. "jobs:status:" .. id, "delayed")
  call("ZADD", P .. "jobs:delayed", due, id)
  call("ZADD", P .. "ox:marker:" .. asked.type, due, "1")
  emit(asked.type, "delayed", id, "delay", due, "state", runs > 0 and "retrying" or "delayed",
    run_fields(o, o[12] and "retried" or "snoozed", o[7]))
end

function end_as.w(id, o, facts)
  uncount(id, facts, 1)
  make_ready(id, facts, true)
  note_ready(id, o[5])
  emit(asked.type, "waiting", id, "prev", "active", run_fields(o, "given_back"))
end

function end_as.l(id, o, facts)
  end_as.w(id, o, facts)
  excuse(id)
  call("SET", P .. "ox:hold:" .. asked.type, "1", "PX", math.max(1, o[11]))
end

local ENDS = { c = true, f = true, x = true }
local codes, awaited = {}, {}
for i = 1, tonumber(ARGV[at]) do
  local o = cmsgpack.unpack(ARGV[at + i])
  o[5] = o[5] ~= "" and o[5] or asked.now
  local id = o[2]
  local code = refusal(id, o[3], o[4])
  if not code then
    leave(id, asked.type)
    if o[15] ~= "" then
      call("HSET", P .. "ox:facts", id, o[15]) -- it goes to another worker
    end
    end_as[o[1]](id, o, facts_of(id))
    code = 1
    if pending > 0 and ENDS[o[1]] and call("EXISTS", P .. "ox:next:" .. id) == 1 then
      awaited[#awaited + 1] = id
    end
  end
  codes[i] = code
end
local answer = claim_jobs(asked)
answer.awaited = awaited
return answer_claim(codes, answer, asked)
