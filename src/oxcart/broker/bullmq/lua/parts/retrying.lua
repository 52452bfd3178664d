-- Lets a finished job run again. Needs base, gate, insert, failing and steps.

-- Records a replay for a pipeline, under the id of its event: name, creation and labels of the job. The tables may
-- have been built up to the end of its earlier generation, whose events are not read again.
local function record_replay(key, entry, id)
  local known = call("HMGET", key, "name", "timestamp", "ox:corr", "ox:tags", "ox:limit")
  local fields = { "event", "replayed", "jobId", id }
  for i, name in ipairs({ "name", "created", "corr", "tags", "key" }) do
    if known[i] and known[i] ~= "" then
      fields[#fields + 1] = name
      fields[#fields + 1] = known[i]
    end
  end
  redis.pcall("XADD", P .. "ox:attempts", "MAXLEN", "~", max_events(P), entry, unpack(fields))
end

-- Moves one job from `failed` or `completed` to the ready list. Returns 1, or -1 no such job, -3 not in that
-- state. `reset` resets its attempts. It does not reset its starts: they are the fencing number, by which a store
-- refuses a late writer. Their number is stored, because workers may bound starts.
local function retry_one(gate, id, state, front, reset, now)
  local key = P .. id
  if call("EXISTS", key) == 0 then
    return -1
  end
  local known = call("HMGET", key, "parentKey", "ox:history", "ox:category", "ox:dead", "atm", "stc", "opts",
    "attemptsMade", "ox:lifetime")
  local parent_key, history = known[1], known[2]
  local has_parent = parent_key and call("EXISTS", parent_key) == 1 -- refused before any write if it is in another slot
  if call("ZREM", P .. state, id) == 0 then
    return -3
  end
  call("HDEL", key, "finishedOn", "processedOn", state == "failed" and "failedReason" or "returnvalue", "ox:category",
    "ox:untold", "ox:cancel", "ox:code", "ox:dead")
  if reset then
    call("HDEL", key, "atm", "attemptsMade", "stc", "ox:excused", "ox:shared")
    local starts = call("HGET", key, "ats")
    if starts then
      call("HSET", key, "ox:forgiven", starts)
    end
  end
  replay_steps(key, state == "completed")
  now = now or server_ms()
  call("HSET", key, "ox:ready", now)
  if known[9] then -- the new generation has a lifetime of its own
    call("HSET", key, "ox:since", now)
    call("ZADD", P .. "ox:expiring", now + known[9], id)
  end
  if history then
    local left = state == "failed" and formal_failure(unpack(known, 3, 8)) or state
    call("HSET", key, "ox:history", noted(history, now, left, "scheduled", "",
      "an operator replays the job: a new generation begins"))
  end
  insert_ready(P, gate, id, front)
  if has_parent then
    local was
    if state == "failed" then
      was = call("ZREM", parent_key .. ":unsuccessful", key) == 1 or call("HDEL", parent_key .. ":failed", key) == 1
    else
      was = call("HDEL", parent_key .. ":processed", key) == 1
    end
    if was then
      call("SADD", parent_key .. ":dependencies", key)
    end
  end
  local entry = call("XADD", P .. "events", "MAXLEN", "~", max_events(P), "*", "event", "waiting", "jobId", id,
    "prev", state)
  if is_attached(P) then
    record_replay(key, entry, id)
  end
  return 1
end
