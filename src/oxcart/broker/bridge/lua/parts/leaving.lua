-- Removes a job from `active`.

-- A counter never goes below zero: a reset by an operator must not lift a limit.
local function give_slot_back(job_type)
  local key = P .. "ratelimit:concurrent:" .. job_type
  if call("DECR", key) < 0 then
    call("SET", key, "0")
  end
end

-- Releases the lock, the place in the set and the slot of the job's type.
local function leave(id, job_type)
  call("DEL", P .. "jobs:lock:" .. id)
  local held = call("HDEL", P .. "ox:held", id)
  -- Another client may have removed a job of ours from the set, without releasing the slot.
  if call("SREM", P .. "jobs:active", id) + held > 0 then
    give_slot_back(job_type)
  end
  call("SREM", P .. "ox:active:" .. job_type, id)
end

-- Records an ended job for listings. Entries older than a day are dropped, as their keys are; dead letters stay.
local function note_end(id, job_type, state, now)
  local key = P .. "ox:ended:" .. state .. ":" .. job_type
  call("ZADD", key, now, id)
  if state ~= "failed" then
    call("ZREMRANGEBYSCORE", key, "-inf", tonumber(now) - 86400000)
  end
end

-- All keys of an ended job stay as long as its result, then they expire together; 0 removes them now.
-- A schedule whose own id was pushed and run, as the specification's scheduler does, stays a schedule: returns
-- whether it is one.
local function keep_for(id, seconds)
  if call("ZSCORE", P .. "jobs:cron", id) then
    call("SET", P .. "jobs:status:" .. id, "cron")
    call("HDEL", P .. "ox:facts", id)
    return true
  end
  for _, kind in ipairs({ "jobs:data:", "jobs:status:", "jobs:result:", "jobs:progress:", "ox:job:" }) do
    if seconds > 0 then
      call("EXPIRE", P .. kind .. id, seconds)
    else
      call("DEL", P .. kind .. id)
    end
  end
  call("HDEL", P .. "ox:facts", id)
  return false
end

-- Appends to a JSON result when the last run ended and how long it took.
local function timed(result, id, now)
  local began = tonumber(call("HGET", P .. "ox:job:" .. id, "processedOn") or now) or tonumber(now)
  local took = math.max(0, tonumber(now) - began)
  return string.sub(result, 1, -2) .. string.format(',"completedAt":%.0f,"processingTime":%.0f}', now, took)
end

-- Returns additional event fields of an ended run for a pipeline that reads.
local function fields_of_run(id, job_type, outcome, now, category, code, reason, stack, version)
  if not is_read(job_type) then
    return
  end
  local fields = { "outcome", outcome, "ended", now }
  local function add(name, value)
    if value and value ~= "" then
      fields[#fields + 1] = name
      fields[#fields + 1] = value
    end
  end
  local run = call("HMGET", P .. "ox:job:" .. id, "processedOn", "pb", "ats", "ox:ran")
  add("steps", run[4] and string.match(run[4], "^" .. (run[3] or "0") .. "\t(.*)$"))
  add("began", run[1])
  add("worker", run[2])
  add("category", category)
  add("code", code)
  add("failedReason", reason)
  add("stack", stack)
  add("version", version)
  return unpack(fields)
end

-- Makes the job a dead letter, until an operator replays or removes it. Its result expires after a day; its
-- record stays as long as the list names it.
local function bury(id, job_type, result, now, reason, state, ...)
  call("SET", P .. "jobs:result:" .. id, timed(result, id, now), "EX", 86400)
  call("SET", P .. "jobs:status:" .. id, "dead")
  call("LPUSH", P .. "jobs:deadletter", id)
  call("HDEL", P .. "ox:facts", id)
  call("INCR", P .. "metrics:jobs:failed")
  note_end(id, job_type, "failed", now)
  emit(job_type, "failed", id, "failedReason", reason, "prev", "active", "state", state, ...)
end
